package main

import (
	"strings"
	"testing"
)

func TestAJobIsEnqueuedIfAndOnlyIfItsTransactionCommits(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	const want = `the payment of 4711 fails: the bank says no
4711 is paid: done
Redis loses everything, and 4711 is paid again: was done before
the relay has enqueued 1 mails
the relay has enqueued 0 mails
1 payment was made
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
