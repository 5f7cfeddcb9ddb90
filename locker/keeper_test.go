package locker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestALeaseIsRenewedForHours(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 3 * time.Second})
		time.Sleep(2 * time.Hour)
		if err := lease.Context().Err(); err != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		if n := store.Calls(locker.OpRenew); n < 6500 || n > 8100 {
			t.Fatalf("%d renewals in 2 h, want about one a second", n)
		}
		release(t, lease)
		n := store.Calls(locker.OpRenew)
		time.Sleep(time.Hour)
		if store.Calls(locker.OpRenew) != n {
			t.Fatal("renewal goes on after the release")
		}
	})
}

func TestALeaseThatCannotBeRenewedEndsBeforeTheServerGivesItAway(t *testing.T) {
	for name, spoil := range map[string]func(*lockertest.Memory){
		"failing": func(m *lockertest.Memory) { m.Fail(locker.OpRenew, errors.New("connection reset")) },
		"hanging": func(m *lockertest.Memory) { m.Delay(locker.OpRenew, 50*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store)
				spoil(store)
				store.Fail(locker.OpRelease, errors.New("EOF")) // the release must not free the key early
				start := time.Now()
				lease := acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Second})
				lost(t, lease, locker.ErrLost)
				checkElapsed(t, start, 10*time.Second-102*time.Millisecond, 0) // the drift is 1 % and 2 ms
				if i, err := store.Inspect(t.Context(), "a"); err != nil || !i.Held {
					t.Fatal("the server gave the key away before its holder was notified")
				}
				if err := lease.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
					t.Fatalf("release after the loss: %v", err)
				}
				if n := store.Calls(locker.OpRenew); n < 4 {
					t.Fatalf("%d attempts to renew", n)
				}
				if name == "failing" && !strings.Contains(context.Cause(lease.Context()).Error(), "connection reset") {
					t.Fatal(context.Cause(lease.Context()))
				}
				store.Delay(locker.OpRenew, 0)
			})
		})
	}
}

func TestAFailedRenewalIsNotALoss(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Second})
		for range 20 { // 20 times, renewals fail for 5 s and then succeed for 5 s
			store.Fail(locker.OpRenew, errors.New("EOF"))
			time.Sleep(5 * time.Second)
			store.Fail(locker.OpRenew, nil)
			time.Sleep(5 * time.Second)
		}
		if lease.Context().Err() != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		release(t, lease)
	})
}

func TestATakenLeaseIsALossAtTheNextRenewal(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		store.Steal("a")
		start := time.Now()
		lost(t, lease, locker.ErrLost)
		checkElapsed(t, start, 2*time.Second, 2*time.Second)
		if err := lease.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
			t.Fatal(err)
		}
		if i, _ := store.Inspect(t.Context(), "a"); !i.Held {
			t.Fatal("the release freed another holder's lease")
		}
	})
}

func TestABrokenLeaseIsRevoked(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		if err := l.Revoke(t.Context(), "a", lease.Fence(), "deploy"); err != nil {
			t.Fatal(err)
		}
		lost(t, lease, locker.ErrLost, locker.ErrRevoked)
		if text := context.Cause(lease.Context()).Error(); !strings.Contains(text, "deploy") {
			t.Fatalf("%q does not give the reason", text)
		}
		wantErr(t, l.Revoke(t.Context(), "a", lease.Fence(), "again"), "a", locker.ErrGone)
	})
}

func TestALossOfOneLeaseDoesNotConcernOthers(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		a, b := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second}), acquire(t, l, locker.Rule{Key: "b", TTL: time.Second})
		store.Steal("a")
		lost(t, a, locker.ErrLost)
		time.Sleep(time.Minute)
		release(t, b)
	})
}

func TestALateAnswerDoesNotResurrect(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		// The renewal is sent at 0.33 s, and the server runs it at 1.23 s, when the lease is
		// over.
		store.Delay(locker.OpRenew, 900*time.Millisecond)
		lost(t, lease, locker.ErrLost)
		expires := lease.Expires()
		time.Sleep(10 * time.Second)
		if lease.Context().Err() == nil || !lease.Expires().Equal(expires) {
			t.Fatal("the lease lives again")
		}
		store.Delay(locker.OpRenew, 0)
	})
}

// lagging is a Store whose renewals succeed only when the test allows it.
type lagging struct {
	store.Store
	renew func([]store.Claim)
}

func (s lagging) Renew(_ context.Context, cs []store.Claim) ([]store.Grant, error) {
	s.renew(cs)
	return slices.Repeat([]store.Grant{{State: store.Granted}}, len(cs)), nil
}

func TestALateSuccessDoesNotResurrectALease(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, lagging{backend, func([]store.Claim) { time.Sleep(2 * time.Second) }})
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		lost(t, lease, locker.ErrLost)
		expires := lease.Expires()
		time.Sleep(10 * time.Second)
		if !lease.Expires().Equal(expires) {
			t.Fatal("the lease lives again")
		}
	})
}

func TestARenewalCountsFromBeforeItWasSent(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		const ttl, slow = 3 * time.Second, 900 * time.Millisecond
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: ttl})
		store.Delay(locker.OpRenew, slow)
		before := lease.Expires()
		for lease.Expires().Equal(before) {
			time.Sleep(time.Millisecond)
		}
		if left := time.Until(lease.Expires()); left > ttl-slow-30*time.Millisecond {
			t.Fatalf("%v left, although the renewal was on its way for %v", left, slow)
		}
		release(t, lease)
	})
}

func TestALostLeaseIsFreedForOthers(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Fail(locker.OpRenew, errors.New("EOF"))
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Minute})
		lost(t, lease, locker.ErrLost)
		synctest.Wait()
		if store.Len() != 0 {
			t.Fatal("the key is still taken, although it has no holder")
		}
	})
}

func TestTheKeeperRenewsInBatches(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		leases := make([]*locker.Lease, 5000)
		for i := range leases {
			leases[i] = acquire(t, l, locker.Rule{Key: "a" + strings.Repeat("b", i%300) + string(rune('a'+i/300)), TTL: 10 * time.Second})
		}
		store.Fail(locker.OpAcquire, nil)
		before := store.Calls(locker.OpRenew)
		time.Sleep(3700 * time.Millisecond)
		calls := store.Calls(locker.OpRenew) - before
		if calls < 100 || calls > 250 {
			t.Fatalf("5000 leases were renewed in %d calls, want about 150", calls)
		}
		for _, lease := range leases {
			if lease.Context().Err() != nil {
				t.Fatal(context.Cause(lease.Context()))
			}
			release(t, lease)
		}
	})
}

func TestHungRenewalsDoNotPileUp(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Hour})
		store.Delay(locker.OpRenew, 30*time.Minute)
		time.Sleep(45 * time.Minute)
		if n := store.Calls(locker.OpRenew); n > 20 {
			t.Fatalf("%d renewals of one lease are under way", n)
		}
		store.Delay(locker.OpRenew, 0)
		release(t, lease)
		time.Sleep(time.Hour)
	})
}

// slow is an Observer that takes a long time for the notification of a loss.
type slow struct{ lockertest.Recorder }

func (s *slow) Begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, func(locker.Outcome) {
		if op == locker.OpHold {
			time.Sleep(10 * time.Second)
		}
	}
}

func TestASlowObserverDoesNotDelayOtherDeadlines(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithoutRenewal(), locker.WithObserver(new(slow)))
		start := time.Now()
		acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		b := acquire(t, l, locker.Rule{Key: "b", TTL: 2 * time.Second})
		lost(t, b, locker.ErrExpired)
		checkElapsed(t, start, 1900*time.Millisecond, 100*time.Millisecond)
	})
}
