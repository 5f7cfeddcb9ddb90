package storetest

import (
	"errors"
	"testing"
)

// A call whose request is lost does not run, and a call whose reply is lost runs. Both have the
// same error, and no other call is lost.
func TestLossesLoseOneCall(t *testing.T) {
	t.Parallel()
	for how, runs := range map[loss]int{lostRequest: 2, lostReply: 3} {
		l, ran, failed := new(Losses), 0, 0
		l.lose(1, how)
		for range 3 {
			if err := l.Call(func() error { ran++; return nil }); errors.Is(err, errLost) {
				failed++
			}
		}
		if ran != runs || failed != 1 || l.count() != 3 {
			t.Errorf("%s: %d of 3 calls ran, %d failed", how, ran, failed)
		}
		if got, hit := l.takeHit(); !hit || got != how {
			t.Errorf("%s: %q, %v", how, got, hit)
		}
		if _, hit := l.takeHit(); hit {
			t.Errorf("%s: hit twice", how)
		}
	}
}
