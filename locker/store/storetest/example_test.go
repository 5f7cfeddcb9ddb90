package storetest_test

import (
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/store/storetest"
)

// The test of a Store runs each law as a subtest. If the Store lacks a capability, the test removes
// the capability from Can. If the test can cause a fault, the Harness has a function for the fault.
func Example() {
	var t *testing.T // of func TestMyStoreObeysTheLaws(t *testing.T)

	storetest.RunInBubble(t, func(*testing.T) storetest.Harness { // Run, for a Store on a server
		backend, can := lockertest.NewMemory(), storetest.All
		can.Readers = false
		return storetest.Harness{
			Store:   backend,
			Can:     can,
			Another: func(testing.TB) locker.Store { return backend.NewProcess() },
			Occupy:  func(_ testing.TB, key string, ttl time.Duration) { backend.Occupy(key, ttl) },
		}
	})
}
