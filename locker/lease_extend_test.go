package locker_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestALateRenewalDoesNotShortenAnExtension(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		var calls atomic.Int32
		l := lockertest.NewLocker(t, lagging{backend, func([]store.Claim) {
			if calls.Add(1) == 1 {
				time.Sleep(3 * time.Second)
			}
		}})
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		time.Sleep(4 * time.Second) // by now, the first renewal is under way
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		expires := lease.Expires()
		// The 4 s pass in steps that are shorter than renewSlack (5 ms). With longer steps, the
		// next renewal would hide a failed extension.
		for range 40_000 {
			time.Sleep(100 * time.Microsecond)
			if lease.Expires().Before(expires) {
				t.Fatal("the extension was undone")
			}
		}
		release(t, lease)
	})
}

func TestAtMostEndsALease(t *testing.T) {
	for name, tc := range map[string]struct {
		rule     locker.Rule
		opts     []locker.Option
		ends     time.Duration
		renewals int
	}{
		"renewed until then":     {rule: locker.Rule{TTL: 3 * time.Second, EndAfter: 10 * time.Second}, ends: 10 * time.Second, renewals: 20},
		"EndAfter = TTL":         {rule: locker.Rule{TTL: 3 * time.Second, EndAfter: 3 * time.Second}, ends: 3 * time.Second},
		"EndAfter < TTL":         {rule: locker.Rule{TTL: 30 * time.Second, EndAfter: 2 * time.Second}, ends: 2 * time.Second},
		"a Locker without renew": {rule: locker.Rule{TTL: 3 * time.Second}, opts: []locker.Option{locker.WithoutRenewal()}, ends: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store, tc.opts...)
				tc.rule.Key = "a"
				start := time.Now()
				lease := acquire(t, l, tc.rule)
				lost(t, lease, locker.ErrExpired)
				wantNot(t, context.Cause(lease.Context()), locker.ErrLost)
				checkElapsed(t, start, tc.ends-tc.ends/50-10*time.Millisecond, tc.ends/50+10*time.Millisecond)
				if n := store.Calls(locker.OpRenew); n > tc.renewals {
					t.Fatalf("%d renewals, at most %d expected", n, tc.renewals)
				}
				time.Sleep(500 * time.Millisecond)
				if store.Len() != 0 {
					t.Fatal("the key outlives EndAfter")
				}
				wantErr(t, lease.Release(t.Context()), "a", locker.ErrExpired)
			})
		})
	}
}

func TestExtend(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithoutRenewal(), locker.WithMaxTTL(time.Hour))
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 5 * time.Second})
		start := time.Now()
		if err := lease.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if left := lease.Expires().Sub(start); left < 19*time.Second || left > 20*time.Second {
			t.Fatalf("expires in %v", left)
		}
		if err := lease.Extend(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		lost(t, lease, locker.ErrExpired)
		checkElapsed(t, start, 19*time.Second, time.Second)
		wantErr(t, lease.Extend(t.Context(), time.Second), "a", locker.ErrExpired)

		lease = acquire(t, l, locker.Rule{Key: "b", TTL: 5 * time.Second})
		for _, bad := range []time.Duration{0, -time.Second, time.Microsecond, 2 * time.Millisecond, 2 * time.Hour} {
			wantErr(t, lease.Extend(t.Context(), bad), "b", locker.ErrInvalidRule)
		}
		release(t, lease)
		wantErr(t, lease.Extend(t.Context(), time.Second), "b", locker.ErrReleased)

		lease = acquire(t, l, locker.Rule{Key: "c", TTL: 5 * time.Second})
		store.Steal("c")
		wantErr(t, lease.Extend(t.Context(), 10*time.Second), "c", locker.ErrLost)
		if lease.Context().Err() == nil {
			t.Fatal("the lease lives on after the server has refused it as not ours")
		}
	})
}

func TestExtendStopsAtAtMost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 2 * time.Second, EndAfter: 5 * time.Second})
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		lost(t, lease, locker.ErrExpired)
		checkElapsed(t, start, 4800*time.Millisecond, 200*time.Millisecond)
	})
}

func TestAHangingExtensionObeysItsContextAndTheLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Second})
		store.Delay(locker.OpRenew, 50*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		wantErr(t, lease.Extend(ctx, time.Minute), "a", context.DeadlineExceeded)
		checkElapsed(t, start, time.Second, 0)
		wantErr(t, lease.Extend(t.Context(), time.Minute), "a", locker.ErrLost)
		checkElapsed(t, start, 9*time.Second, time.Second)
		store.Delay(locker.OpRenew, 0)
	})
}

// late is a Store that executes the first renewal some time after it was sent.
type late struct {
	*lockertest.Memory
	calls *atomic.Int32
}

func (s late) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	if s.calls.Add(1) == 1 {
		time.Sleep(2 * time.Second)
	}
	return s.Memory.Renew(ctx, cs)
}

func TestALateRenewalDoesNotCutAnExtensionOnTheServer(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, late{store, new(atomic.Int32)}, locker.WithBackoff(locker.Exponential(time.Second, time.Second)))
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		time.Sleep(4 * time.Second)
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second) // by now, the server has run the late first renewal, for 9 s
		if i, _ := store.Inspect(t.Context(), "a"); i.Left < 50*time.Minute {
			t.Fatalf("%v left on the server, while the holder counts on %v", i.Left, time.Until(lease.Expires()))
		}
		release(t, lease)
	})
}

func TestAnExtensionThatFailedChangesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, backend)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		backend.Fail(locker.OpRenew, &store.Refusal{Err: errors.New("OOM")})
		wantErr(t, lease.Extend(t.Context(), time.Hour), "a", locker.ErrUnavailable)
		backend.Fail(locker.OpRenew, nil)
		time.Sleep(time.Minute)
		if i, _ := backend.Inspect(t.Context(), "a"); i.Left > 9*time.Second {
			t.Fatalf("%v left: the failed extension was made later", i.Left)
		}
		release(t, lease)
	})
}

// refusesRenewals is a Store that refuses the renewal of every lease, for ever.
type refusesRenewals struct{ *lockertest.Memory }

func (s refusesRenewals) Renew(_ context.Context, cs []store.Claim) ([]store.Grant, error) {
	return slices.Repeat([]store.Grant{{Err: &store.Refusal{Err: errors.New("NOPERM")}}}, len(cs)), nil
}

func TestAnExtensionThatIsRefusedAmongOthersIsNotRepeated(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, refusesRenewals{backend})
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		start := time.Now()
		wantErr(t, lease.Extend(t.Context(), time.Hour), "a", locker.ErrUnavailable)
		checkElapsed(t, start, 0, 0)
		release(t, lease)
	})
}

func TestAShortExtensionIsRenewedUntilAtMost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 30 * time.Second, EndAfter: time.Minute})
		time.Sleep(45 * time.Second)
		if err := lease.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		lost(t, lease, locker.ErrExpired)
		checkElapsed(t, start, 59*time.Second, time.Second)
	})
}

func TestExtendWhileClosingSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locktest.NewEngine(store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, lease.Extend(t.Context(), time.Hour), "a", locker.ErrClosed)
	})
}

func TestAnExtensionOutlastsTheAdaptiveTTL(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithAdaptiveTTL(time.Second, time.Minute))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		if err := lease.Extend(t.Context(), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(10 * time.Second)
			if left := time.Until(lease.Expires()); left < 10*time.Second {
				t.Fatalf("%v left: renewals ask for less than the extension", left)
			}
		}
		release(t, lease)
	})
}

// A lease that is never renewed does not last longer because its grant is confirmed, also if it has
// an EndAfter.
func TestAConfirmationRenewsNothing(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2, locker.WithoutRenewal())
		rule := locker.Rule{Key: "a", TTL: 8 * time.Second, EndAfter: time.Hour}
		holder := acquire(t, ls[0], rule)
		next := startWaiting(t, ls[1], rule)
		synctest.Wait()
		release(t, holder)
		lease := next.awaitGrant(time.Second)
		granted := time.Now()
		<-lease.Context().Done()
		if lasted := time.Since(granted); lasted > 8*time.Second {
			t.Errorf("the lease has lasted for %v", lasted)
		}
	})
}
