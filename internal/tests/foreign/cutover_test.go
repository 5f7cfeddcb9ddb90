package foreign

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// instance is one instance of a service after the old library is gone. It has a Locker that polls,
// and one that queues, and its switch says which of them it uses. It always wants the key.
type instance struct {
	polls, queues *locker.Engine
	queue         atomic.Bool
	visits        atomic.Int64
}

// crowd starts instances that lock the same key until the test ends, and checks that their visits
// do not overlap.
func crowd(t *testing.T, n int) []*instance {
	t.Helper()
	servers := []*redistest.Server{redistest.Start(t)}
	ctx, cancel := context.WithCancel(t.Context())
	var inside atomic.Int32
	var work sync.WaitGroup
	all := make([]*instance, n)
	for i := range all {
		in := &instance{polls: openLocker(t, "migrating", servers), queues: openLocker(t, "NewSingle", servers)}
		all[i] = in
		work.Go(func() {
			for ctx.Err() == nil {
				l := in.polls
				if in.queue.Load() {
					l = in.queues
				}
				_ = locker.Run(ctx, l, locker.Rule{Key: "busy", Wait: time.Second}, func(context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two instances hold the key")
					}
					time.Sleep(3 * time.Millisecond) //nolint:forbidigo // the work under the lock
					inside.Add(-1)
					in.visits.Add(1)
					return nil
				})
			}
		})
	}
	t.Cleanup(func() { cancel(); work.Wait() })
	return all
}

// until waits until the instances have made n more visits in total, and returns how many of them
// each has made.
func until(t *testing.T, all []*instance, n int64) (shares []int64) {
	t.Helper()
	before := make([]int64, len(all))
	for i, in := range all {
		before[i] = in.visits.Load()
	}
	locktest.Eventually(t, "the instances get the key", func() bool {
		total := int64(0)
		shares = shares[:0]
		for i, in := range all {
			shares = append(shares, in.visits.Load()-before[i])
			total += shares[i]
		}
		return total >= n
	})
	return shares
}

// Instances that poll starve while others queue for the same busy key. When all instances change
// from polling to the queue at the same time, each of them keeps its share.
func TestTheChangeToTheQueueAtOneTimeStarvesNobody(t *testing.T) {
	t.Parallel()
	t.Run("one by one", func(t *testing.T) {
		t.Parallel()
		all := crowd(t, 4)
		all[0].queue.Store(true)
		all[1].queue.Store(true)
		until(t, all, 20) // what began before the change
		if shares := until(t, all, 400); shares[2]+shares[3] > 40 {
			t.Errorf("of 400 visits, those who poll have %d and %d; the page says that they starve", shares[2], shares[3])
		}
	})
	t.Run("at one time", func(t *testing.T) {
		t.Parallel()
		all := crowd(t, 4)
		each := func(what string) {
			var before []int64
			for _, in := range all {
				before = append(before, in.visits.Load())
			}
			locktest.Eventually(t, what, func() bool {
				for i, in := range all {
					if in.visits.Load() == before[i] {
						return false
					}
				}
				return true
			})
		}
		each("each instance gets the key while all poll")
		for _, in := range all {
			in.queue.Store(true)
		}
		each("each instance gets the key after the change") // a call that polls at the change polls on until its Wait is over
		shares := until(t, all, 400)
		t.Logf("of 400 visits, the instances have %d", shares)
		for i, n := range shares {
			if n < 40 {
				t.Errorf("instance %d has %d of 400 visits after the change", i, n)
			}
		}
	})
}

// A DEL without a token deletes whatever lease the key has. The holder learns of it, and the next
// fence is larger, so data that checks the fence refuses the old holder.
func TestADeleteWithoutATokenTakesTheLeaseOfLatchkit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	theirs := server.Client(t)
	l := openLocker(t, "migrating", []*redistest.Server{server})
	if ok, err := theirs.SetNX(t.Context(), "job", "1", 100*time.Millisecond).Result(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ours := locktest.Acquire(t, l, locker.Rule{Key: "job", TTL: 2 * time.Second}) // when theirs has run out
	if err := theirs.Del(t.Context(), "job").Err(); err != nil {                  // they come back, and delete
		t.Fatal(err)
	}
	other := openLocker(t, "migrating", []*redistest.Server{server})
	next := locktest.Acquire(t, other, locker.Rule{Key: "job", Wait: locker.NoWait})
	locktest.Lost(t, ours, locker.ErrLost)
	if next.Fence() <= ours.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), ours.Fence())
	}
	locktest.Release(t, next)
}
