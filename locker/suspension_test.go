package locker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A machine was suspended and runs again. Its monotonic clock has stood still meanwhile, so the
// deadlines of leases have not come nearer. But the server's clock has continued to run.
func TestALeaseThatASuspendedMachineLostEndsSoonAfterItWakes(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute})
		<-time.After(2500 * time.Millisecond)
		store.Wipe() // as if the lease had expired on the server during the suspension
		locker.Suspend(e, time.Hour)
		woke := time.Now()
		<-lease.Context().Done()
		if late := time.Since(woke); late > 1500*time.Millisecond || !errors.Is(context.Cause(lease.Context()), locker.ErrLost) {
			t.Errorf("after %v: %v", late, context.Cause(lease.Context()))
		}
	})
}

// A clock that is set forward looks like a suspension. The change causes a renewal, but no
// lease is lost.
func TestAClockThatIsSetForwardCostsNoLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute})
		<-time.After(2500 * time.Millisecond)
		before := store.Calls(locker.OpRenew)
		locker.Suspend(e, time.Hour)
		<-time.After(1500 * time.Millisecond)
		if n := store.Calls(locker.OpRenew) - before; n != 1 {
			t.Errorf("%d renewals at once, want 1", n)
		}
		<-time.After(time.Minute)
		release(t, lease)
	})
}

// If the server does not answer after a suspension, the lease ends, because the lease may have
// expired on the server.
func TestALeaseEndsWhenNobodyAnswersAfterASuspension(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute})
		<-time.After(2500 * time.Millisecond)
		store.Fail(locker.OpRenew, errors.New("i/o timeout"))
		locker.Suspend(e, time.Hour)
		woke := time.Now()
		<-lease.Context().Done()
		if late := time.Since(woke); late > 2500*time.Millisecond || !errors.Is(context.Cause(lease.Context()), locker.ErrLost) {
			t.Errorf("after %v: %v", late, context.Cause(lease.Context()))
		}
	})
}

// The answer to a renewal comes after a suspension, and after the keeper has noticed it. The answer
// may be from before the suspension, so it does not give the lease its whole TTL again.
func TestAnAnswerFromBeforeASuspensionLengthensNoLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute})
		store.DelayReplies(locker.OpRenew, 100*time.Millisecond)
		for store.Calls(locker.OpRenew) == 0 {
			<-time.After(10 * time.Millisecond)
		}
		store.Fail(locker.OpRenew, errors.New("i/o timeout"))
		locker.Suspend(e, time.Hour)
		woke := time.Now()
		acquire(t, e, locker.Rule{Key: "b"}) // the keeper looks at the clocks
		<-lease.Context().Done()
		if late := time.Since(woke); late > 2500*time.Millisecond || !errors.Is(context.Cause(lease.Context()), locker.ErrLost) {
			t.Errorf("after %v: %v", late, context.Cause(lease.Context()))
		}
	})
}

// A lease that is not renewed ends by the wall clock, because the monotonic clock stands still
// during a suspension.
func TestALeaseThatIsNotRenewedEndsByTheWallClock(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store, locker.WithoutRenewal())
		lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute})
		<-time.After(2500 * time.Millisecond)
		locker.Suspend(e, 30*time.Second)
		<-time.After(1500 * time.Millisecond)
		if left := time.Until(lease.Expires()); left > 30*time.Second || lease.Context().Err() != nil {
			t.Errorf("it ends in %v, and has ended with %v", left, context.Cause(lease.Context()))
		}
		locker.Suspend(e, time.Hour)
		woke := time.Now()
		<-lease.Context().Done()
		if late := time.Since(woke); late > 1500*time.Millisecond || !errors.Is(context.Cause(lease.Context()), locker.ErrExpired) {
			t.Errorf("after %v: %v", late, context.Cause(lease.Context()))
		}
	})
}

// A suspension while the Engine holds nothing does not concern the leases that are granted after
// it. The keeper has not looked at the clocks meanwhile.
func TestASuspensionThatCameBeforeALeaseDoesNotShortenIt(t *testing.T) {
	for name, keep := range map[string]bool{"nothing was held": false, "another lease was held": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				before := acquire(t, e, locker.Rule{Key: "before", TTL: time.Minute})
				if !keep {
					release(t, before)
				}
				<-time.After(3100 * time.Millisecond)
				locker.Suspend(e, time.Hour)
				lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute, EndAfter: time.Minute})
				<-time.After(3 * time.Second)
				if left := time.Until(lease.Expires()); left < 50*time.Second || lease.Context().Err() != nil {
					t.Errorf("it ends in %v, and has ended with %v", left, context.Cause(lease.Context()))
				}
			})
		})
	}
}

// The server's answer to an acquire comes after a suspension. The server may have granted the lease
// before it, so the lease ends by the wall clock. This is so for the first lease of an Engine too.
func TestASuspensionDuringAnAcquireShortensTheLease(t *testing.T) {
	for name, first := range map[string]bool{"the first lease": true, "a later lease": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				if !first {
					release(t, acquire(t, e, locker.Rule{Key: "before"}))
					<-time.After(3 * time.Second)
				}
				store.DelayReplies(locker.OpAcquire, 100*time.Millisecond)
				time.AfterFunc(50*time.Millisecond, func() { locker.Suspend(e, 30*time.Second) })
				lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute, EndAfter: time.Minute})
				<-time.After(1500 * time.Millisecond)
				if left := time.Until(lease.Expires()); left > 30*time.Second || left < 20*time.Second {
					t.Errorf("it ends in %v, and has ended with %v", left, context.Cause(lease.Context()))
				}
			})
		})
	}
}

// A suspension that was shorter than the rest of a lease takes its time from the lease. Several
// take their times together. Only an answer gives the lease its whole TTL again.
func TestShortSuspensionsShortenALease(t *testing.T) {
	for name, naps := range map[string][]time.Duration{"one": {20 * time.Second}, "several": {7 * time.Second, 7 * time.Second, 6 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				lease := acquire(t, e, locker.Rule{Key: "a", TTL: 30 * time.Second})
				<-time.After(2500 * time.Millisecond)
				store.Fail(locker.OpRenew, errors.New("i/o timeout"))
				began := time.Now()
				for _, nap := range naps {
					locker.Suspend(e, nap)
					<-time.After(1100 * time.Millisecond)
				}
				if left := time.Until(lease.Expires()); left > 8*time.Second {
					t.Errorf("it ends in %v by the monotonic clock", left)
				}
				<-lease.Context().Done()
				if lasted := time.Since(began); lasted > 8500*time.Millisecond || lasted < 6*time.Second {
					t.Errorf("it has ended after %v, want 7.5 s", lasted)
				}
			})
		})
	}
}

// Whatever call notices a suspension, the leases are renewed at once.
func TestARenewalFollowsASuspensionThatAReleaseHasNoticed(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute})
		other := acquire(t, e, locker.Rule{Key: "b", TTL: time.Minute})
		<-time.After(2500 * time.Millisecond)
		before := store.Calls(locker.OpRenew)
		locker.Suspend(e, time.Hour)
		release(t, other)
		<-time.After(100 * time.Millisecond) // the keeper itself looks again in half a second
		if n := store.Calls(locker.OpRenew) - before; n != 1 {
			t.Errorf("%d renewals, want 1", n)
		}
	})
}

// During a suspension, a lease may expire on the server. So it is handed over to no other caller of
// the process until an answer has proved it.
func TestALeaseThatASuspendedMachineKeptIsNotHandedOver(t *testing.T) {
	for name, ttl := range map[string]time.Duration{
		"a long lease":  time.Minute,
		"a short lease": time.Second, // half of its TTL is less than the wait for an answer
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				store.Delay(locker.OpRenew, 5*time.Millisecond) // so that no renewal proves the lease before its release
				lease := acquire(t, e, locker.Rule{Key: "a", TTL: ttl})
				next := startWaiting(t, e, locker.Rule{Key: "a", TTL: ttl})
				synctest.Wait()
				locker.Suspend(e, time.Hour)
				release(t, lease)
				release(t, next.awaitGrant(time.Second))
				if n := store.Calls(locker.OpAcquire); n != 2 {
					t.Errorf("%d acquires, so the old lease was handed over", n)
				}
			})
		})
	}
}

// The answer to an extension comes after a suspension that the keeper has not noticed yet. Its time
// is missing once.
func TestASuspensionIsTakenOnceFromAnExtendedLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store, locker.WithoutRenewal())
		lease := acquire(t, e, locker.Rule{Key: "a", TTL: time.Minute})
		<-time.After(100 * time.Millisecond)
		store.DelayReplies(locker.OpRenew, 200*time.Millisecond)
		sent := time.Now()
		extended := make(chan error, 1)
		go func() { extended <- lease.Extend(t.Context(), time.Minute) }()
		<-time.After(100 * time.Millisecond)
		locker.Suspend(e, 25*time.Second)
		if err := <-extended; err != nil {
			t.Fatal(err)
		}
		if lasts := lease.Expires().Sub(sent); lasts < 34*time.Second || lasts > 35*time.Second {
			t.Errorf("it ends %v after the call, want 35 s", lasts)
		}
	})
}

// The answer that gives a lease its last TTL comes after a suspension, which the keeper has noticed
// before it. No renewal follows, so the lease ends when it ends on the server.
func TestALastAnswerThatCrossesASuspensionGivesNoSecond(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		lease := acquire(t, e, locker.Rule{Key: "a", TTL: 30 * time.Second, EndAfter: 35 * time.Second})
		store.DelayReplies(locker.OpRenew, 100*time.Millisecond)
		for store.Calls(locker.OpRenew) == 0 {
			<-time.After(10 * time.Millisecond)
		}
		store.Fail(locker.OpRenew, errors.New("i/o timeout"))
		<-time.After(time.Millisecond) // the suspension comes after the send
		locker.Suspend(e, time.Hour)
		acquire(t, e, locker.Rule{Key: "b"}) // the keeper looks at the clocks
		<-time.After(150 * time.Millisecond)
		if lease.Context().Err() == nil {
			t.Errorf("the holder believes in its lease for %v more", time.Until(lease.Expires()))
		}
	})
}
