package locker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These are tests of callers of one process that share a lease.

// crowd starts n waiters for a key. Each waiter begins to wait after the previous waiter.
func crowd(t *testing.T, l locker.Locker, rule locker.Rule, n int) (ws []*waiting) {
	t.Helper()
	for range n {
		ws = append(ws, startWaiting(t, l, rule))
	}
	return ws
}

func calls(store *lockertest.Memory) int {
	return store.Calls(locker.OpAcquire) + store.Calls(locker.OpRelease) + store.Calls(locker.OpRenew)
}

func TestALeaseIsPassedOnWithoutACall(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 100)
		before := calls(store)
		fences := map[uint64]bool{lease.Fence(): true}
		last := lease.Fence()
		for _, w := range ws {
			release(t, lease)
			lease = w.awaitGrant(0)
			if lease.Fence() <= last || fences[lease.Fence()] {
				t.Fatalf("fence %d after %d", lease.Fence(), last)
			}
			last = lease.Fence()
			fences[last] = true
			if i, err := l.Inspect(t.Context(), "a"); err != nil || last < i.Fence || last >= i.Fence+locker.LongestStreak {
				t.Fatalf("fence %d lies outside of the block that begins at %d, %v", last, i.Fence, err)
			}
		}
		if n := calls(store) - before; n != 2 { // one release after 64 leases, and the acquire of the next leader
			t.Errorf("%d calls for 100 leases", n)
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

func TestAStreakEnds(t *testing.T) {
	t.Run("after so many leases, and others come between", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, _ := processes(t, store, 2, locker.WithHandoffs(3))
			lease := acquire(t, ls[0], locker.Rule{Key: "a"})
			ours, theirs := crowd(t, ls[0], locker.Rule{Key: "a"}, 4), crowd(t, ls[1], locker.Rule{Key: "a"}, 4)
			for i, w := range []*waiting{ours[0], ours[1], theirs[0], theirs[1], theirs[2], ours[2], ours[3], theirs[3]} {
				synctest.Wait() // until the next leader of the other process has queued
				release(t, lease)
				select {
				case <-w.ended:
				case <-time.After(time.Millisecond):
					t.Fatalf("number %d was not served in its turn", i)
				}
				lease = w.awaitGrant(0)
			}
			release(t, lease)
			nothingLeft(t, store)
		})
	})
	t.Run("after ten milliseconds", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, _ := processes(t, store, 2)
			lease := acquire(t, ls[0], locker.Rule{Key: "a"})
			ours, theirs := crowd(t, ls[0], locker.Rule{Key: "a"}, 2), startWaiting(t, ls[1], locker.Rule{Key: "a"})
			release(t, lease)
			lease = ours[0].awaitGrant(0)
			<-time.After(11 * time.Millisecond)
			release(t, lease)
			release(t, theirs.awaitGrant(0))
			release(t, ours[1].awaitGrant(0))
		})
	})
	t.Run("when too little of the lease is left", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			rule := locker.Rule{Key: "a", TTL: 18 * time.Millisecond}
			store.Delay(locker.OpRenew, time.Second)
			lease, next := acquire(t, l, rule), startWaiting(t, l, rule)
			<-time.After(8 * time.Millisecond)
			before := calls(store)
			release(t, lease)
			lease = next.awaitGrant(0)
			if calls(store) == before || time.Until(lease.Expires()) < 10*time.Millisecond {
				t.Errorf("%v left: a lease that is nearly over was passed on", time.Until(lease.Expires()))
			}
			release(t, lease)
		})
	})
	t.Run("when its lease is lost, and no fence comes twice", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			lease := acquire(t, l, locker.Rule{Key: "a"})
			ws := crowd(t, l, locker.Rule{Key: "a"}, 3)
			release(t, lease)
			lease = ws[0].awaitGrant(0)
			store.Steal("a")
			thief, err := l.Inspect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			lost(t, lease, locker.ErrLost)
			ws[1].checkWaiting()
			store.Free("a")
			next := ws[1].awaitGrant(2 * time.Second)
			if next.Fence() <= thief.Fence {
				t.Errorf("fence %d after the thief's %d", next.Fence(), thief.Fence)
			}
			if err := lease.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
				t.Errorf("release of the lost lease: %v", err)
			}
			if next.Context().Err() != nil {
				t.Error("the release of the lost lease has ended the next one")
			}
			release(t, next)
			release(t, ws[2].awaitGrant(0))
			nothingLeft(t, store)
		})
	})
}

func TestOnlyEqualTermsShare(t *testing.T) {
	for name, rule := range map[string]locker.Rule{
		"TTL":      {Key: "a", TTL: time.Minute},
		"KeepFor":  {Key: "a", KeepFor: time.Millisecond},
		"EndAfter": {Key: "a", EndAfter: time.Hour},
		"OnceFor":  {Key: "a", OnceFor: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store)
				lease := acquire(t, l, locker.Rule{Key: "a"})
				w := startWaiting(t, l, rule)
				before := store.Calls(locker.OpRelease)
				release(t, lease)
				if store.Calls(locker.OpRelease) == before {
					t.Error("the lease was passed on to other terms")
				}
				release(t, w.awaitGrant(0))
				<-time.After(time.Second)
				nothingLeft(t, store)
			})
		})
	}
}

func TestAStreaksLeasesEndApart(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		rec := new(lockertest.Recorder)
		l := lockertest.NewLocker(t, store, locker.WithObserver(rec))
		first := acquire(t, l, locker.Rule{Key: "a"})
		next := startWaiting(t, l, locker.Rule{Key: "a", Name: "other"})
		ctx := first.Context()
		release(t, first)
		second := next.awaitGrant(0)
		if !errors.Is(context.Cause(ctx), locker.ErrReleased) || second.Context().Err() != nil {
			t.Errorf("first: %v, second: %v", context.Cause(ctx), context.Cause(second.Context()))
		}
		if err := first.Extend(t.Context(), time.Hour); !errors.Is(err, locker.ErrReleased) {
			t.Errorf("extend of a released lease: %v", err)
		}
		release(t, first) // a second release of the same Lease, which must do nothing
		if second.Context().Err() != nil || store.Len() != 1 {
			t.Error("the second release of the first lease ended the next one")
		}
		<-time.After(time.Hour)
		if second.Context().Err() != nil {
			t.Error("a lease that was passed on is not renewed")
		}
		if i, err := l.Inspect(t.Context(), "a"); err != nil || !strings.Contains(second.String(), "a") || i.Fence+1 != second.Fence() {
			t.Errorf("%+v %v, fence %d", i, err, second.Fence())
		}
		if err := l.Revoke(t.Context(), "a", second.Fence(), "drill"); err != nil {
			t.Fatalf("break by the fence of a lease that was passed on: %v", err)
		}
		lost(t, second, locker.ErrRevoked)
	})
}

// The time limit of a caller's first call counts from when the call is sent. The time for which the
// caller has waited in its process before does not count.
func TestALongWaitInTheProcessIsNoLateAnswer(t *testing.T) {
	t.Run("after a hold was lost", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			_ = acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			w := startWaiting(t, l, locker.Rule{Key: "a", TTL: time.Second})
			<-time.After(3 * time.Second)
			before := store.Calls(locker.OpAcquire)
			store.Wipe() // the holder will notice the loss at its next renewal
			lease := w.awaitGrant(400 * time.Millisecond)
			if n := store.Calls(locker.OpAcquire) - before; n != 1 {
				t.Errorf("%d acquires for a free key", n)
			}
			if left := time.Until(lease.Expires()); left < 980*time.Millisecond {
				t.Errorf("%v left of a lease of 1 s that was just granted", left)
			}
			release(t, lease)
			nothingLeft(t, store)
		})
	})
	t.Run("after a streak, without messages of grants", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			store.Disturb(lockertest.EventFaults{Refusal: errors.New("NOPERM")})
			l := lockertest.NewLocker(t, store, locker.WithHandoffs(2))
			lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			ws := crowd(t, l, locker.Rule{Key: "a", TTL: time.Second}, 2)
			<-time.After(3 * time.Second)
			before := store.Calls(locker.OpAcquire)
			for _, w := range ws {
				release(t, lease)
				lease = w.awaitGrant(0)
				if left := time.Until(lease.Expires()); left < 500*time.Millisecond {
					t.Errorf("%v left of a lease of 1 s", left)
				}
			}
			if n := store.Calls(locker.OpAcquire) - before; n > 1 {
				t.Errorf("%d acquires for a free key", n)
			}
			release(t, lease)
			nothingLeft(t, store)
		})
	})
}

// If an extended hold were passed on and its process died, the key would stay locked for the long
// time that the previous holder has asked for.
func TestAnExtendedHoldIsNotPassedOn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		w := startWaiting(t, l, locker.Rule{Key: "a", TTL: time.Second})
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		release(t, lease)
		next := w.awaitGrant(0)
		if i, err := l.Inspect(t.Context(), "a"); err != nil || i.Left > time.Second || i.Fence != next.Fence() {
			t.Errorf("a lease of 1 s with fence %d: %+v %v", next.Fence(), i, err)
		}
		before := store.Calls(locker.OpRenew)
		<-time.After(50 * time.Minute)
		if n := store.Calls(locker.OpRenew) - before; n > 50*60*4 {
			t.Errorf("%d renewals in 50 min", n)
		}
		release(t, next)
		nothingLeft(t, store)
	})
}

func TestAReleasedLeaseDoesNotLastAsLongAsTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		w := startWaiting(t, l, locker.Rule{Key: "a", TTL: time.Second})
		released := time.Now()
		release(t, lease)
		next := w.awaitGrant(0)
		<-time.After(time.Minute)
		if at := lease.Expires(); at.After(released) {
			t.Errorf("it expires %v after its release", at.Sub(released))
		}
		if left := time.Until(next.Expires()); left < 500*time.Millisecond {
			t.Errorf("%v left of the next one", left)
		}
		release(t, next)
	})
}
