package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A hundred clients want a lock that they have never held. Each client is in a process of its own,
// and retries after RetryAfter. Together, they wait at most twice as long as clients that wait
// in the queue.
func TestColdClientsThatObeyRetryAfterWaitNoLongerThanTwiceTheQueue(t *testing.T) {
	t.Parallel()
	for _, held := range []time.Duration{300 * time.Millisecond, 3 * time.Second} {
		queued := simulate(t, held, locker.Rule{Key: "k", Name: "k"})
		obeying := simulate(t, held, locker.Rule{Key: "k", Name: "k", Wait: locker.NoWait})
		t.Logf("holds of %v: the queue takes %v in all, RetryAfter %v: %.2f times", held, queued, obeying, float64(obeying)/float64(queued))
		if obeying > 2*queued {
			t.Errorf("holds of %v: %v instead of %v", held, obeying, queued)
		}
		if queued < 99*49*held { // positive control: a shorter wait would mean that the clients do not exclude each other
			t.Errorf("the queue took %v only", queued)
		}
	}
}

// simulate lets a hundred clients use one lock, each for holdTime. It returns the sum of their
// waits.
func simulate(t *testing.T, holdTime time.Duration, rule locker.Rule) (total time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		memory := lockertest.NewMemory()
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 100 {
			e, err := locktest.NewEngine(memory.NewProcess())
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				defer func() { _ = e.Close(context.Background()) }()
				time.Sleep(rand.N(10 * time.Millisecond))
				began := time.Now()
				lease, err := e.Acquire(t.Context(), rule)
				for busy := (*locker.Error)(nil); errors.As(err, &busy) && errors.Is(err, locker.ErrBusy); {
					time.Sleep(busy.RetryAfter)
					lease, err = e.Acquire(t.Context(), rule)
				}
				if err != nil {
					t.Error(err)
					return
				}
				waited := time.Since(began)
				time.Sleep(holdTime)
				release(t, lease)
				mu.Lock()
				defer mu.Unlock()
				total += waited
			})
		}
		all.Wait()
	})
	return total
}

// For a client that has never held the lock, RetryAfter depends on how long the holder has held the
// lock, up to a limit. RetryAfter does not depend on the remaining TTL of the holder's lease.
func TestRetryAfterFollowsTheHold(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, open := range lockers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holder, cold := open(t, server.Client(t)), open(t, server.Client(t))
			rule := locker.Rule{Key: "follows:" + name, TTL: 30 * time.Second, Wait: locker.NoWait}
			lease := acquire(t, holder, rule)
			for _, held := range []time.Duration{0, 400 * time.Millisecond} {
				time.Sleep(held)
				after := refused(t, cold, rule)
				if since := time.Since(lease.Expires().Add(-30 * time.Second)); after > since*3/2+200*time.Millisecond || after < held {
					t.Errorf("held for %v: retry after %v", since, after)
				}
			}
		})
	}
}

// If KeepFor keeps a key after its release, it is certain when the key will be free. So
// RetryAfter is exactly the time until then, without a limit and without jitter.
func TestRetryAfterOfAKeptKeyIsWhatItIsKept(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, open := range lockers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, server.Client(t))
			rule := locker.Rule{Key: "kept:" + name, KeepFor: time.Minute, Wait: locker.NoWait}
			release(t, acquire(t, e, rule))
			if after := refused(t, open(t, server.Client(t)), rule); after < 55*time.Second || after > time.Minute {
				t.Errorf("retry after %v", after)
			}
		})
	}
}

func refused(t *testing.T, e *locker.Engine, rule locker.Rule) time.Duration {
	t.Helper()
	_, err := e.Acquire(t.Context(), rule)
	var busy *locker.Error
	if !errors.As(err, &busy) || !errors.Is(err, locker.ErrBusy) {
		t.Fatal(err)
	}
	return busy.RetryAfter
}
