package locker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These are tests of readers. Several processes share a server in memory.

var (
	reading = locker.Rule{Key: "a", Mode: locker.Shared}
	writing = locker.Rule{Key: "a"}
)

// patient returns r with Wait set to d.
func patient(r locker.Rule, d time.Duration) locker.Rule {
	r.Wait = d
	return r
}

func TestReadersOfAllProcessesShareAKey(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		one, other := acquire(t, ls[0], reading), acquire(t, ls[1], reading)
		if one.Fence() != other.Fence() || one.Fence() == 0 || one.Mode() != locker.Shared {
			t.Fatalf("fences %d and %d, mode %v", one.Fence(), other.Fence(), one.Mode())
		}
		w := startWaiting(t, ls[2], writing)
		release(t, one)
		w.checkWaiting()
		release(t, other)
		written := w.awaitGrant(0)
		if written.Fence() <= one.Fence() {
			t.Fatalf("fence %d after %d", written.Fence(), one.Fence())
		}
		r := startWaiting(t, ls[0], reading)
		r.checkWaiting()
		release(t, written)
		if again := r.awaitGrant(0); again.Fence() <= written.Fence() {
			t.Fatalf("fence %d after %d", again.Fence(), written.Fence())
		}
	})
}

// A reader first looks for a phase, and then enters its cohort. If a phase begins between these two
// steps, no later message notifies the reader, so the reader must notice the phase when it enters.
func TestAReaderThatComesWhileThePhaseBeginsIsLetIn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], reading)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late, err := ls[0].LateReader(ctx, reading)
		if err != nil || late.Fence() != first.Fence() {
			t.Fatalf("a reader beside an open phase ended with %v", err)
		}
		release(t, first)
		w := startWaiting(t, ls[1], writing)
		w.checkWaiting()
		release(t, late)
		w.awaitGrant(0)
	})
}

func TestReadersOfAProcessShareOneLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		acquires, releases := store.Calls(locker.OpAcquire), store.Calls(locker.OpRelease)
		var readers []*locker.Lease
		for range 64 {
			readers = append(readers, acquire(t, ls[0], reading))
		}
		if n := store.Calls(locker.OpAcquire) - acquires; n != 1 {
			t.Fatalf("%d acquires were sent for 64 readers", n)
		}
		w := startWaiting(t, ls[1], writing)
		for i, r := range readers {
			if r.Fence() != readers[0].Fence() {
				t.Fatalf("fence %d beside %d", r.Fence(), readers[0].Fence())
			}
			w.checkWaiting()
			release(t, r)
			if n := store.Calls(locker.OpRelease) - releases; n != (i+1)/64 {
				t.Fatalf("%d releases were sent after reader %d", n, i+1)
			}
		}
		w.awaitGrant(0)
	})
}

func TestReadersWhoWaitTogetherAreServedTogether(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		w := acquire(t, ls[0], writing)
		acquires := store.Calls(locker.OpAcquire)
		var rs []*waiting
		for i := range 20 {
			rs = append(rs, startWaiting(t, ls[i%2], reading))
		}
		release(t, w)
		for _, r := range rs {
			r.awaitGrant(0)
		}
		if n := store.Calls(locker.OpAcquire) - acquires; n != 2 {
			t.Fatalf("%d acquires were sent for 20 readers of two processes", n)
		}
		next := startWaiting(t, ls[0], writing)
		for _, r := range rs {
			next.checkWaiting()
			release(t, r.lease)
		}
		next.awaitGrant(0)
	})
}

func TestAHoldOfReadersThatIsNotSoundIsNotShared(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		first := acquire(t, l, reading)
		store.Fail(locker.OpRenew, errors.New("EOF"))
		<-time.After(20 * time.Second)
		store.Fail(locker.OpRenew, nil)
		calls := store.Calls(locker.OpAcquire)
		second := acquire(t, l, reading)
		if n := store.Calls(locker.OpAcquire) - calls; n != 1 {
			t.Fatalf("%d acquires, want one: the lease has failed to be renewed", n)
		}
		release(t, first)
		release(t, second)
	})
}

func TestTermsOfReaders(t *testing.T) {
	longer, bounded, once := reading, reading, reading
	longer.TTL = time.Hour
	bounded.EndAfter = time.Hour
	once.OnceFor = time.Minute
	for name, tc := range map[string]struct {
		rule   locker.Rule
		option locker.Option
		shares bool
	}{
		"the same":        {rule: reading, shares: true},
		"NoWait":          {rule: patient(reading, locker.NoWait), shares: true},
		"a Wait":          {rule: patient(reading, time.Second), shares: true},
		"another TTL":     {rule: longer},
		"EndAfter":        {rule: bounded},
		"OnceFor":         {rule: once},
		"WithFair":        {rule: reading, option: locker.WithFair()},
		"WithoutQueue":    {rule: reading, option: locker.WithoutQueue()},
		"WithoutRenewal":  {rule: reading, option: locker.WithoutRenewal()},
		"WithHandoffs(2)": {rule: reading, option: locker.WithHandoffs(2), shares: true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				var opts []locker.Option
				if tc.option != nil {
					opts = append(opts, tc.option)
				}
				l := lockertest.NewLocker(t, store, opts...)
				acquire(t, l, reading)
				calls := store.Calls(locker.OpAcquire)
				second := acquire(t, l, tc.rule)
				if shared := store.Calls(locker.OpAcquire) == calls; shared != tc.shares {
					t.Fatalf("shares the lease: %v, want %v", shared, tc.shares)
				}
				release(t, second)
			})
		})
	}
}

// exclusive hides all capabilities of a Store.
type exclusive struct{ store.Store }

func TestALockerWithoutReadersSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, exclusive{store})
		_, err := l.Acquire(t.Context(), reading)
		wantErr(t, err, "a", locker.ErrUnsupported)
	})
}
