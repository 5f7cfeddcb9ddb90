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
	const want = `the payment of 4711 fails: the bank refuses
4711 is paid: done
Redis loses its data, and 4711 is paid again: was done before
mails that the relay has enqueued: 1
mails that the relay has enqueued: 0
payments: 1
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
