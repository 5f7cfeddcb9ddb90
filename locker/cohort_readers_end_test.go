package locker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestALossEndsAllReadersOfTheProcess(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var rec lockertest.Recorder
		l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
		readers := []*locker.Lease{acquire(t, l, reading), acquire(t, l, reading), acquire(t, l, reading)}
		release(t, readers[2])
		store.Steal("a")
		for _, r := range readers[:2] {
			lost(t, r, locker.ErrLost)
		}
		synctest.Wait()
		releases := store.Calls(locker.OpRelease)
		for _, r := range readers[:2] {
			wantErr(t, r.Release(t.Context()), "a", locker.ErrLost)
		}
		synctest.Wait()
		if n := store.Calls(locker.OpRelease) - releases; n != 0 {
			t.Fatalf("%d releases were sent for what is not ours", n)
		}
		store.Free("a")
		release(t, acquire(t, l, reading)) // this acquire gets a new lease, not the lost one
	})
}

func TestReadersWhoseRenewalsFailEndInTime(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		rule := reading
		rule.TTL = 10 * time.Second
		one, other := acquire(t, ls[0], rule), acquire(t, ls[0], rule)
		start := time.Now()
		store.Fail(locker.OpRenew, errors.New("EOF"))
		w := startWaiting(t, ls[1], writing)
		lost(t, one, locker.ErrLost)
		lost(t, other, locker.ErrLost)
		if d := time.Since(start); d >= rule.TTL {
			t.Fatalf("they were told after %v", d)
		}
		w.awaitGrant(10 * time.Second)
	})
}

func TestADeadReaderCostsItsOwnTimeOnly(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		rule := reading
		rule.TTL = 5 * time.Second
		acquire(t, ls[0], rule)
		alive := acquire(t, ls[1], reading)
		ps[0].Die()
		start := time.Now()
		w := startWaiting(t, ls[2], writing)
		<-time.After(time.Minute) // in this time, the living reader still reads
		w.checkWaiting()
		release(t, alive)
		w.awaitGrant(0)
		checkElapsed(t, start, time.Minute, 0)

		release(t, w.lease)
		acquire(t, ls[1], rule)
		ps[1].Die()
		start = time.Now()
		acquire(t, ls[2], writing)
		checkElapsed(t, start, 0, 5*time.Second+10*time.Millisecond)
	})
}

func TestAReaderWithEndAfterEndsAlone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		bounded := reading
		bounded.EndAfter = time.Minute
		short, other := acquire(t, ls[0], bounded), acquire(t, ls[0], reading)
		w := startWaiting(t, ls[1], writing)
		lost(t, short, locker.ErrExpired)
		if err := context.Cause(other.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, other)
		w.awaitGrant(0)
	})
}

func TestAnExtensionOfOneReaderHarmsNoOther(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 1)
		one, other := acquire(t, ls[0], reading), acquire(t, ls[0], reading)
		expires := other.Expires()
		if err := one.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		if !other.Expires().Equal(expires) {
			t.Fatalf("the other's lease ends at %v, before at %v", other.Expires(), expires)
		}
		if err := one.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		calls := store.Calls(locker.OpAcquire)
		third := acquire(t, ls[0], reading)
		if store.Calls(locker.OpAcquire) == calls {
			t.Fatal("a third reader shares a lease that would outlive its process for an hour")
		}
		release(t, one)
		<-time.After(2 * time.Hour)
		release(t, other)
		release(t, third)
	})
}

// A reader that joins after another one has shortened its own renewals gets the TTL of its Rule.
func TestAnExtensionHarmsNoReaderThatJoinsLater(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 1)
		one := acquire(t, ls[0], reading)
		if err := one.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		other := acquire(t, ls[0], reading)
		release(t, one)
		<-time.After(time.Minute)
		if left := time.Until(other.Expires()); left < other.TTL()/2 {
			t.Fatalf("a lease of %v ends in %v", other.TTL(), left)
		}
		release(t, other)
	})
}

func TestReadersAfterAnEmptyRestart(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		one, other := acquire(t, ls[0], reading), acquire(t, ls[1], reading)
		start := time.Now()
		store.Wipe()
		lost(t, one, locker.ErrLost)
		lost(t, other, locker.ErrLost)
		checkElapsed(t, start, 0, 10*time.Millisecond) // at once, because a new subscription makes renewals due
		acquire(t, ls[0], writing)
	})
}

// renewals counts the renewals that an Observer hears of.
type renewals struct {
	lockertest.Recorder
	n atomic.Int32
}

func (r *renewals) Renewed(context.Context, locker.Rule, locker.RenewalEvent) { r.n.Add(1) }

// When the first of several readers leaves, the others are renewed as before: the Observer hears of
// their renewals.
func TestTheSecondReaderTakesThePlaceOfTheFirst(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var heard renewals
		l := lockertest.NewLocker(t, store, locker.WithObserver(&heard))
		first, second := acquire(t, l, reading), acquire(t, l, reading)
		release(t, first)
		heard.n.Store(0)
		time.Sleep(time.Until(second.Expires())) //nolint:forbidigo // in a bubble
		synctest.Wait()
		if heard.n.Load() == 0 {
			t.Error("the Observer has heard of no renewal")
		}
	})
}

func TestABreakThrowsAllReadersOut(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		leases := []*locker.Lease{acquire(t, ls[0], reading), acquire(t, ls[0], reading), acquire(t, ls[1], reading)}
		i, err := ls[0].Inspect(t.Context(), "a")
		if err != nil || i.Readers != 2 || i.Mode != locker.Shared || i.Fence != leases[0].Fence() {
			t.Fatalf("%+v %v, want two processes that read", i, err)
		}
		if err := ls[1].Revoke(t.Context(), "a", i.Fence, "drill"); err != nil {
			t.Fatal(err)
		}
		for _, l := range leases {
			lost(t, l, locker.ErrRevoked)
		}
	})
}

func TestAReaderThatGivesUpWhileItIsLetIn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		w := acquire(t, ls[0], writing)
		leader, follower := startWaiting(t, ls[1], reading), startWaiting(t, ls[1], reading)
		ps[1].Disturb(lockertest.EventFaults{Delay: 50 * time.Millisecond})
		release(t, w)
		leader.cancel()
		follower.cancel()
		<-leader.ended
		<-follower.ended
		start := time.Now()
		acquire(t, ls[0], writing)
		checkElapsed(t, start, 0, 10*time.Millisecond)
	})
}

func TestCloseEndsReaders(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		readers := []*locker.Lease{acquire(t, l, reading), acquire(t, l, reading)}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range readers {
			lost(t, r, locker.ErrClosed)
			release(t, r)
		}
		if store.Len() != 0 {
			t.Fatal("the key is held still")
		}
	})
}
