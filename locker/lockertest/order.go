package lockertest

import (
	"sync"
	"testing"

	"github.com/latchkit/latchkit/locker"
)

// Order returns an Option that fails the test when the code under test takes locks in different
// orders, with the call stack of each acquire: see [locker.WithOrderCheck]. No deadlock has to
// happen for that, and the two orders may be taken one after the other. Give the Option to all
// Lockers of the test.
func Order(t testing.TB) locker.Option {
	var mu sync.Mutex
	ended := false
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
	})
	return locker.WithOrderCheck(func(conflict string) {
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			t.Error(conflict)
		}
	})
}
