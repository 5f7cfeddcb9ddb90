package lockertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/fenced"
	"github.com/latchkit/latchkit/locker"
)

// EachLoss checks that code under a lock does no harm after its lease was lost, wherever that
// happens. It calls test once without a loss. In this run it counts the places where a lease can
// be lost: each call to the lock server, and each look at a context that has a lease, while a lease
// is held. Then it calls test again for each place, as a subtest, and takes all held leases away
// there:
//
//	at a call   after the server has granted an acquire, and before it executes any other call
//	at a look   the look does not notice it, as if the process stood still just after the look; and
//	            in a second subtest the look notices it: the process stands still before the look,
//	            until its leases are over
//
// The stranger that has got the locks frees them after [locker.DefaultTTL]. Each call of test has a
// [Memory] of its own, and runs in a testing/synctest bubble, so its waits take no time.
//
// test makes its writes to the data that the locks protect through write, which stands for a
// database that checks fences, as package sqllock does. write returns
//
//	the cause of ctx, such as ErrLost       when ctx has ended
//	sqllock.ErrStaleFence                   when a lease in ctx was taken away
//	nil, and fails the test                 when a lease was taken away, and ctx has no lease
//	nil                                     otherwise: the data was written
//
// test must expect that the code fails with such an error: it is a mistake to report success after
// it, or to leave half of the work behind. A database without fences would have written where write
// returns ErrStaleFence.
func EachLoss(t *testing.T, test func(t *testing.T, l locker.Locker, write func(ctx context.Context) error)) {
	t.Helper()
	var whole losses
	synctest.Test(t, func(t *testing.T) { whole.run(t, test) })
	if t.Failed() {
		return // the test fails without any loss
	}
	for i, place := range whole.places {
		t.Run(fmt.Sprintf("loss at %d %s", i+1, place), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { (&losses{at: i + 1}).run(t, test) })
		})
		if place == look {
			t.Run(fmt.Sprintf("loss before %d %s", i+1, place), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { (&losses{at: i + 1, noticed: true}).run(t, test) })
			})
		}
	}
}

// look is the place of a look at a context. The places of calls are their Ops.
const look = "look"

// losses takes the leases of one call of the test away. Nil takes none.
type losses struct {
	t       *testing.T
	memory  *Memory
	at      int  // the place at which the leases are taken away, from 1; 0: none
	noticed bool // the process stands still there until its leases are over

	// memory.mu guards all fields below.
	places []string // the places that were passed
	taken  []string // the keys that were taken away
	fence  uint64   // the first fence after the loss; earlier fences are stale
}

// run calls test with a Locker whose leases r takes away.
func (r *losses) run(t *testing.T, test func(*testing.T, locker.Locker, func(context.Context) error)) {
	r.t, r.memory = t, NewMemory()
	r.memory.losses = r
	test(t, NewLocker(t, r.memory), r.write)
}

// hook returns the function that is called before each look at a context.
func (r *losses) hook() func() {
	if r == nil {
		return nil
	}
	return func() {
		r.memory.mu.Lock()
		over := r.pass(look)
		r.memory.mu.Unlock()
		if r.noticed {
			time.Sleep(over)
		}
	}
}

// pass notes a place, and takes the leases away if it is the place at which to do so. Then it
// returns how long they would have lasted. The caller holds memory.mu.
func (r *losses) pass(place string) (over time.Duration) {
	if r == nil {
		return 0
	}
	var held []string
	for key := range r.memory.leases {
		if l, ok := r.memory.lease(key); ok && !l.kept && !l.foreign && l.owner != stranger {
			held, over = append(held, key), max(over, r.memory.timeLeft(l))
		}
	}
	if len(held) == 0 {
		return 0
	}
	if r.places = append(r.places, place); len(r.places) != r.at {
		return 0
	}
	slices.Sort(held)
	for i, key := range held {
		if fence := r.memory.steal(key); i == 0 {
			r.fence = fence
		}
	}
	r.taken = held
	time.AfterFunc(locker.DefaultTTL, func() {
		for _, key := range held {
			r.memory.Free(key)
		}
	})
	return over
}

// write stands for a write to a database that checks fences: see EachLoss.
func (r *losses) write(ctx context.Context) error {
	r.t.Helper()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	leases := locker.LeasesFromContext(ctx)
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	for _, l := range leases {
		if l.Fence() < r.fence {
			return fmt.Errorf("lockertest: a write with fence %d of %s, which was taken away: %w", l.Fence(), l.Key(), fenced.ErrStale)
		}
	}
	if r.fence != 0 && len(leases) == 0 {
		r.t.Errorf("lockertest: data was written after %s was taken away, and neither ErrLost nor a stale fence prevents that, because the context of the write has no lease; "+
			"pass on the context that locker.Run gives to its function, or that of Lease.Context", strings.Join(r.taken, ", "))
	}
	return nil
}
