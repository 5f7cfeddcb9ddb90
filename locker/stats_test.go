package locker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These are tests of the Engine's statistics.

// practise takes a lease n times, and holds it for d each time, so that the statistics have data.
func practise(t *testing.T, l locker.Locker, rule locker.Rule, n int, d time.Duration) {
	t.Helper()
	for range n {
		lease := acquire(t, l, rule)
		<-time.After(d)
		release(t, lease)
	}
}

func TestRetryAfterIsWhatLeasesOfThatNameTake(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithFair())
		practise(t, l, locker.Rule{Key: "order:1"}, 9, 200*time.Millisecond)

		busy := func() time.Duration {
			t.Helper()
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "order:2", Wait: locker.NoWait})
			return wantErr(t, err, "order:2", locker.ErrBusy).RetryAfter
		}
		held := acquire(t, l, locker.Rule{Key: "order:2"})
		if d := busy(); d < 200*time.Millisecond || d > 250*time.Millisecond {
			t.Errorf("retry after %v, leases of that name take 200 ms", d)
		}
		<-time.After(200 * time.Millisecond)
		release(t, held)

		held = acquire(t, l, locker.Rule{Key: "order:2"})
		<-time.After(50 * time.Millisecond)
		if d := busy(); d < 145*time.Millisecond || d > 190*time.Millisecond {
			t.Errorf("retry after %v, leases of that name take 200 ms, and 50 ms have passed", d)
		}
		first, second := startWaiting(t, l, locker.Rule{Key: "order:2"}), startWaiting(t, l, locker.Rule{Key: "order:2"})
		if d := busy(); d < 540*time.Millisecond || d > 690*time.Millisecond {
			t.Errorf("retry after %v, three are before", d)
		}
		<-time.After(150 * time.Millisecond)
		release(t, held)
		release(t, first.awaitGrant(0))
		release(t, second.awaitGrant(0))

		_, err := l.Acquire(t.Context(), locker.Rule{Key: "other:1"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Acquire(t.Context(), locker.Rule{Key: "other:1", Wait: locker.NoWait})
		if d := wantErr(t, err, "other:1", locker.ErrBusy).RetryAfter; d > 70*time.Millisecond {
			t.Errorf("retry after %v: another name's leases are mixed in", d)
		}
	})
}

func TestAdaptiveBackoffFollowsTheHolders(t *testing.T) {
	asked := func(t *testing.T, hold time.Duration) (n int) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store.NewProcess(), locker.WithoutQueue(), locker.WithAdaptiveBackoff(time.Millisecond, time.Minute))
			practise(t, l, locker.Rule{Key: "job:1"}, 20, hold)
			before := store.Calls(locker.OpAcquire)
			for range 50 {
				store.Occupy("job:1", hold)
				release(t, acquire(t, l, locker.Rule{Key: "job:1"}))
			}
			n = store.Calls(locker.OpAcquire) - before
		})
		return n
	}
	short, long := asked(t, 10*time.Millisecond), asked(t, 10*time.Second)
	if short > 50*5 || long > 50*5 {
		t.Errorf("%d and %d attempts for 50 leases", short, long)
	}
	if ratio := float64(short) / float64(long); ratio < 0.5 || ratio > 2 {
		t.Errorf("%d attempts where leases take 10 ms, %d where they take 10 s: it does not adapt", short, long)
	}
}

func TestAdaptiveBackoffStaysWithinItsBounds(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithoutQueue(), locker.WithAdaptiveBackoff(100*time.Millisecond, time.Second))
		store.Occupy("a", 0)
		before := store.Calls(locker.OpAcquire)
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 100 * time.Second})
		wantErr(t, err, "a", locker.ErrBusy)
		if n := store.Calls(locker.OpAcquire) - before; n < 100 || n > 1001 { // the pauses are 0.1 to 1 s long
			t.Errorf("%d attempts in 100 s", n)
		}
	})
}

func TestAdaptiveTTLRisesBeforeALease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		rec := new(lockertest.Recorder)
		l := lockertest.NewLocker(t, store, locker.WithAdaptiveTTL(time.Second, time.Minute), locker.WithObserver(rec))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		if left := time.Until(lease.Expires()); left > time.Second {
			t.Fatalf("%v left at first", left)
		}
		for d := 100 * time.Millisecond; d < 6*time.Second; d = d * 5 / 4 {
			store.Delay(locker.OpRenew, d)
			<-time.After(10 * time.Second)
			if lease.Context().Err() != nil {
				t.Fatalf("lost when renewals took %v: %v", d, context.Cause(lease.Context()))
			}
		}
		release(t, lease)
		if o := rec.Records(locker.OpHold)[0].Outcome; o.TTL < 20*time.Second {
			t.Errorf("the Observer is notified of a TTL of %v", o.TTL)
		}
		store.Delay(locker.OpRenew, 0)

		fixed := lockertest.NewLocker(t, store, locker.WithTTL(time.Second)) // the control: its lease is lost
		lease = acquire(t, fixed, locker.Rule{Key: "b"})
		store.Delay(locker.OpRenew, time.Second)
		lost(t, lease, locker.ErrLost)
	})
}

func TestAdaptiveTTLFallsWhenRenewalsArePromptAgain(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithAdaptiveTTL(time.Second, time.Minute))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		store.Delay(locker.OpRenew, 400*time.Millisecond)
		<-time.After(20 * time.Second)
		if left := time.Until(lease.Expires()); left < 2*time.Second {
			t.Errorf("%v left while renewals take 400 ms", left)
		}
		store.Delay(locker.OpRenew, 0)
		<-time.After(5 * time.Minute)
		if left := time.Until(lease.Expires()); left > time.Second {
			t.Errorf("%v left after five minutes of prompt renewals", left)
		}
		release(t, lease)
		explicit := acquire(t, l, locker.Rule{Key: "a", TTL: 20 * time.Second})
		if left := time.Until(explicit.Expires()); left < 19*time.Second {
			t.Errorf("a Rule with a TTL got %v", left)
		}
		release(t, explicit)
	})
}

// The crash of a holder is noticed when the holder's lease expires.
func TestAdaptiveTTLFindsACrashSooner(t *testing.T) {
	taken := func(opts ...locker.Option) (d time.Duration) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			p := store.NewProcess()
			l := lockertest.NewLocker(t, p, opts...)
			lease := acquire(t, l, locker.Rule{Key: "a"})
			<-time.After(time.Minute)
			p.Die()
			start := time.Now()
			other := acquire(t, lockertest.NewLocker(t, store.NewProcess()), locker.Rule{Key: "a"})
			d = time.Since(start)
			release(t, other)
			if err := lease.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
				t.Error(err)
			}
		})
		return d
	}
	adaptive, fixed := taken(locker.WithAdaptiveTTL(time.Second, 30*time.Second)), taken()
	if adaptive > 1100*time.Millisecond || fixed < 15*time.Second {
		t.Errorf("taken over after %v with an adaptive TTL, after %v with the default", adaptive, fixed)
	}
}

// A renewal that is answered at once counts as prompt, even if its TTL is shorter than the time
// that the hold has left.
func TestAdaptiveTTLStaysDownAfterASlowSpell(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithAdaptiveTTL(time.Second, time.Minute))
		var leases []*locker.Lease
		for i := range 64 { // the renewals of some leases begin while others are under way
			leases = append(leases, acquire(t, l, locker.Rule{Key: fmt.Sprint("a", i)}))
		}
		probe := func() time.Duration {
			lease := acquire(t, l, locker.Rule{Key: "probe"})
			defer release(t, lease)
			return time.Until(lease.Expires())
		}
		store.DelayReplies(locker.OpRenew, 200*time.Millisecond)
		<-time.After(10 * time.Second)
		if d := probe(); d < 1500*time.Millisecond {
			t.Errorf("a lease of %v while renewals take 200 ms", d)
		}
		store.DelayReplies(locker.OpRenew, 0)
		<-time.After(time.Minute)
		worst := time.Duration(0)
		before := store.Calls(locker.OpRenew)
		for range 60 {
			<-time.After(10 * time.Second)
			worst = max(worst, probe())
		}
		if worst > time.Second {
			t.Errorf("a lease of %v, long after the renewals became prompt", worst)
		}
		// The limit is four renewals of each lease in each second.
		if n := store.Calls(locker.OpRenew) - before; n > 64*600*4 {
			t.Errorf("%d renewals of 64 leases in 10 min", n)
		}
		for _, lease := range leases {
			release(t, lease)
		}
	})
}
