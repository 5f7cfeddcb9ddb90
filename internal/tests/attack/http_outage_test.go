package attack_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// outageCost is the longest time that an outage may add to a request. The documents promise 1.5
// s. The rest of the 20 s is a margin for a slow machine.
const outageCost = 20 * time.Second

// asked is a Locker that counts the calls of Acquire.
type asked struct {
	*locker.Engine
	acquires atomic.Int32
}

func (a *asked) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	a.acquires.Add(1)
	return a.Engine.Acquire(ctx, r)
}

// tally counts the requests that ran with a lock, and those that ran without a lock.
type tally struct{ guarded, unguarded atomic.Int32 }

func (n *tally) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if _, ok := locker.FromContext(r.Context()); ok {
		n.guarded.Add(1)
	} else {
		n.unguarded.Add(1)
	}
}

// awaitGuarded sends a hundred requests again and again, until all hundred ran with a lock.
func (n *tally) awaitGuarded(t *testing.T, door *httptest.Server) {
	t.Helper()
	await(t, "all requests are guarded", func() bool {
		n.guarded.Store(0)
		hundred(t, door)
		return n.guarded.Load() == 100
	})
}

// In the worst outage, the server process is paused: it sends no replies, although clients can
// still connect. The first requests of the outage wait for the server. After that, only a few
// requests ask the server, to find out whether it replies again.
func TestFailOpenWhileRedisStandsStill(t *testing.T) {
	server := redistest.Start(t)
	e, err := locker.New(server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = e.Close(ctx)
	})
	l, n := &asked{Engine: e}, &tally{}
	for name, front := range fronts(l, n.ServeHTTP, httplock.WithFailOpen(), httplock.WithWait(time.Hour)) {
		t.Run(name, func(t *testing.T) {
			door := httptest.NewServer(front)
			t.Cleanup(door.Close)
			n.awaitGuarded(t, door)
			await(t, "the lock is free", func() bool {
				info, err := e.Inspect(t.Context(), "order:1")
				return err == nil && !info.Held
			})
			n.guarded.Store(0)
			n.unguarded.Store(0)
			server.Pause()
			resume := sync.OnceFunc(server.Resume)
			defer resume()
			began := time.Now()
			hundred(t, door) // these requests wait, until the guard has detected the outage
			if d := time.Since(began); d > outageCost {
				t.Errorf("the first requests of the outage took %v", d)
			}
			l.acquires.Store(0)
			for range 20 {
				began := time.Now()
				hundred(t, door)
				if d := time.Since(began); d > outageCost {
					t.Errorf("requests during the outage took %v", d)
				}
			}
			if asks := l.acquires.Load(); asks > 20 {
				t.Errorf("%d of 2000 requests asked the server", asks)
			}
			if g, u := n.guarded.Load(), n.unguarded.Load(); g != 0 || u != 2100 {
				t.Errorf("during the outage %d requests ran with a lock and %d without, want all 2100 without", g, u)
			}
			resume()
			n.awaitGuarded(t, door)
		})
	}
}

// await calls cond until cond returns true. If this takes too long, the test fails.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
	}
}
