package quorum_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Three processes always ask at the same time. Each process gets the key, two processes never hold
// it at once, and the fences grow.
func TestContendersSplitTheVotesAndAllAreServed(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	var inside atomic.Int32
	var last atomic.Uint64
	var all sync.WaitGroup
	const each = 40
	for range 3 {
		l := redlockOn(t, servers, locker.WithFair())
		all.Go(func() {
			for range each {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: "wanted", Wait: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the key")
				}
				if f := lease.Fence(); last.Swap(f) >= f {
					t.Errorf("fence %d does not grow", f)
				}
				inside.Add(-1)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, s := range servers {
		waitUntilEmpty(t, s)
	}
}
