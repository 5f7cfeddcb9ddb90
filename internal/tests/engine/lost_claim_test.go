package engine

import (
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A lease that the server handed off may be lost before its first renewal. Then the waiter must
// remove its entry from the queue. An entry that stays after a hand-off looks like the entry of
// a dead process, so the next hand-off would remove all other waiters of this process, too.
func TestALostClaimCostsItsProcessNoOtherPlace(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	holder, process, last := newEngine(t, server.Client(t)), newEngine(t, server.Client(t), locker.WithFair()), newEngine(t, server.Client(t))
	order := make(chan string, 3)
	lease := acquire(t, holder, locker.Rule{Key: "k"})
	wait := func(name string, e *locker.Engine) {
		go func() {
			l, err := e.Acquire(t.Context(), locker.Rule{Key: "k"})
			if err != nil {
				order <- err.Error()
				return
			}
			order <- name
			if name == "first" {
				c.Del(t.Context(), "k") // the lease is lost before its first renewal
				<-l.Context().Done()
				return
			}
			time.Sleep(50 * time.Millisecond)
			_ = l.Release(t.Context())
		}()
	}
	for n, w := range []struct {
		name string
		e    *locker.Engine
	}{{"first", process}, {"second", process}, {"last", last}} {
		wait(w.name, w.e)
		awaitWaiters(t, holder, "k", n+1)
	}
	release(t, lease)
	for _, want := range []string{"first", "second", "last"} {
		if got := <-order; got != want {
			t.Errorf("served %s, want %s", got, want)
		}
	}
}
