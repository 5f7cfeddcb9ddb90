package locker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
				store.Fail(locker.OpRelease, errors.New("EOF")) // nobody frees the key early
				start := time.Now()
				lease := acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Second})
				lost(t, lease, locker.ErrLost)
				since(t, start, 10*time.Second-102*time.Millisecond, 0) // 1 % and 2 ms of drift
				if i, err := store.Inspect(t.Context(), "a"); err != nil || !i.Held {
					t.Fatal("the server gave the key away before its holder was told")
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
		for range 20 { // 7 of 10 seconds without an answer, again and again
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
		since(t, start, 2*time.Second, 2*time.Second)
		if err := lease.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
			t.Fatal(err)
		}
		if i, _ := store.Inspect(t.Context(), "a"); !i.Held {
			t.Fatal("the release freed somebody else's lease")
		}
	})
}

func TestABrokenLeaseIsRevoked(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		if err := l.Break(t.Context(), "a", lease.Fence(), "deploy"); err != nil {
			t.Fatal(err)
		}
		lost(t, lease, locker.ErrLost, locker.ErrRevoked)
		if text := context.Cause(lease.Context()).Error(); !strings.Contains(text, "deploy") {
			t.Fatalf("%q does not give the reason", text)
		}
		wantErr(t, l.Break(t.Context(), "a", lease.Fence(), "again"), "a", locker.ErrGone)
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
		store.Delay(locker.OpRenew, 900*time.Millisecond) // sent at 0.33 s, runs in vain at 1.23 s
		lost(t, lease, locker.ErrLost)
		expires := lease.Expires()
		time.Sleep(10 * time.Second)
		if lease.Context().Err() == nil || !lease.Expires().Equal(expires) {
			t.Fatal("the lease lives again")
		}
		store.Delay(locker.OpRenew, 0)
	})
}

// lagging is a Store whose renewals all succeed, when the test says so.
type lagging struct {
	locker.Store
	renew func([]locker.Claim)
}

func (s lagging) Renew(_ context.Context, cs []locker.Claim) ([]locker.Grant, error) {
	s.renew(cs)
	return slices.Repeat([]locker.Grant{{State: locker.Granted}}, len(cs)), nil
}

func TestALateSuccessDoesNotResurrectALease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, lagging{store, func([]locker.Claim) { time.Sleep(2 * time.Second) }})
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

func TestALateRenewalDoesNotShortenAnExtension(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var calls atomic.Int32
		l := lockertest.NewLocker(t, lagging{store, func([]locker.Claim) {
			if calls.Add(1) == 1 {
				time.Sleep(3 * time.Second)
			}
		}})
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		time.Sleep(4 * time.Second) // the first renewal is under way
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		expires := lease.Expires()
		for range 40_000 { // 4 s in steps below the slack after which the next renewal would hide it
			time.Sleep(100 * time.Microsecond)
			if lease.Expires().Before(expires) {
				t.Fatal("the extension was undone")
			}
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
			t.Fatal("the key is still taken, although nobody believes to hold it")
		}
	})
}

func TestAReleaseIsNotFollowedByARenewal(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var mu sync.Mutex
		released, late := map[string]bool{}, 0
		l := lockertest.NewLocker(t, lagging{store, func(cs []locker.Claim) {
			mu.Lock()
			for _, c := range cs {
				if released[c.Key] {
					late++
				}
			}
			mu.Unlock()
			time.Sleep(15 * time.Second) // so that all calls that the keeper allows itself are soon under way
		}})
		var leases []*locker.Lease
		for i := range 20 {
			leases = append(leases, acquire(t, l, locker.Rule{Key: string(rune('a' + i)), TTL: 30 * time.Second}))
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(8 * time.Second)
		for _, lease := range leases {
			release(t, lease)
			mu.Lock()
			released[lease.Key()] = true
			mu.Unlock()
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if late != 0 {
			t.Fatalf("%d renewals were sent after the release", late)
		}
	})
}

func TestAReleaseThatWasSentTooLateIsNoProof(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithoutRenewal())
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		time.Sleep(500 * time.Millisecond)
		store.Fail(locker.OpRelease, &locker.Refusal{Temporary: true, Err: errors.New("LOADING")})
		time.AfterFunc(700*time.Millisecond, func() { // the lease has run out, and somebody else came and went
			store.Fail(locker.OpRelease, nil)
			store.LoseReplies(locker.OpRelease, 1)
		})
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
	})
}

func TestAtMostEndsALease(t *testing.T) {
	for name, tc := range map[string]struct {
		rule     locker.Rule
		opts     []locker.Option
		ends     time.Duration
		renewals int
	}{
		"renewed until then":     {rule: locker.Rule{TTL: 3 * time.Second, AtMost: 10 * time.Second}, ends: 10 * time.Second, renewals: 20},
		"AtMost = TTL":           {rule: locker.Rule{TTL: 3 * time.Second, AtMost: 3 * time.Second}, ends: 3 * time.Second},
		"AtMost < TTL":           {rule: locker.Rule{TTL: 30 * time.Second, AtMost: 2 * time.Second}, ends: 2 * time.Second},
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
				since(t, start, tc.ends-tc.ends/50-10*time.Millisecond, tc.ends/50+10*time.Millisecond)
				if n := store.Calls(locker.OpRenew); n > tc.renewals {
					t.Fatalf("%d renewals, at most %d expected", n, tc.renewals)
				}
				time.Sleep(500 * time.Millisecond)
				if store.Len() != 0 {
					t.Fatal("the key outlives AtMost")
				}
				wantErr(t, lease.Release(t.Context()), "a", locker.ErrExpired)
			})
		})
	}
}

func TestAtLeastKeepsTheKey(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second, AtLeast: 10 * time.Second})
		time.Sleep(4 * time.Second)
		release(t, lease)
		if i, _ := l.Inspect(t.Context(), "a"); !i.Kept {
			t.Fatalf("%+v is not kept", i)
		}
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		since(t, start, 10*time.Second, 5*time.Millisecond)

		lease = acquire(t, l, locker.Rule{Key: "b", AtLeast: 10 * time.Second})
		time.Sleep(11 * time.Second)
		release(t, lease)
		if i, _ := l.Inspect(t.Context(), "b"); i.Held {
			t.Fatal("kept for longer than AtLeast")
		}
	})
}

func TestAtLeastOutlivesAtMost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", AtLeast: 10 * time.Second, AtMost: 10 * time.Second})
		lost(t, lease, locker.ErrExpired)
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		since(t, start, 10*time.Second, 5*time.Millisecond)
	})
}

func TestAtLeastSurvivesTheHoldersCrash(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		crashed := errors.New("crashed")
		store.Fail(locker.OpRenew, crashed)
		store.Fail(locker.OpRelease, crashed)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second, AtLeast: 10 * time.Second})
		time.Sleep(9 * time.Second)
		if store.Len() != 1 {
			t.Fatal("the key was free after its TTL")
		}
		lost(t, lease, locker.ErrLost)
	})
}

func TestReleaseIsIdempotent(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := store.Calls(locker.OpRelease); n != 1 {
			t.Fatalf("%d calls", n)
		}
		if cause := context.Cause(lease.Context()); cause != locker.ErrReleased {
			t.Fatal(cause)
		}
	})
}

func TestReleaseRepeatsAndGivesUpAfterTwoSeconds(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		eof := errors.New("EOF")
		store.Fail(locker.OpRelease, eof)
		start := time.Now()
		err := lease.Release(t.Context())
		since(t, start, 2*time.Second, 0)
		wantErr(t, err, "a", locker.ErrUnavailable, eof)
		wantNot(t, err, locker.ErrLost)
		if lease.Release(t.Context()) != err {
			t.Fatal("the second release says something else")
		}
		store.Fail(locker.OpRelease, nil)
		time.Sleep(time.Second)
		if store.Len() != 0 {
			t.Fatal("the release did not go on in the background")
		}
	})
}

func TestAHangingReleaseDoesNotHoldUpItsCaller(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		store.Delay(locker.OpRelease, 10*time.Second)
		start := time.Now()
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrUnavailable)
		since(t, start, 2*time.Second, 0)
		time.Sleep(20 * time.Second)
		if store.Len() != 0 {
			t.Fatal("the key is still held")
		}
	})
}

func TestAReleaseThatComesAfterALossSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		store.Steal("a")
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
	})
}

func TestALostAnswerDoesNotHideALoss(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithoutRenewal())
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		store.Fail(locker.OpRelease, &locker.Refusal{Temporary: true, Err: errors.New("LOADING")})
		time.AfterFunc(100*time.Millisecond, func() {
			store.Steal("a")
			store.Fail(locker.OpRelease, nil)
		})
		// The refused attempts did not run, so "not ours" is a loss.
		wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
	})
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
		calls := store.Calls(locker.OpRenew)
		if err := lease.Extend(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if store.Calls(locker.OpRenew) != calls {
			t.Fatal("extending to less asked the server")
		}
		lost(t, lease, locker.ErrExpired)
		since(t, start, 9*time.Second, time.Second)
		wantErr(t, lease.Extend(t.Context(), time.Second), "a", locker.ErrExpired)

		lease = acquire(t, l, locker.Rule{Key: "b", TTL: 5 * time.Second})
		for _, bad := range []time.Duration{0, -time.Second, time.Microsecond, 2 * time.Hour} {
			wantErr(t, lease.Extend(t.Context(), bad), "b", locker.ErrInvalidRule)
		}
		release(t, lease)
		wantErr(t, lease.Extend(t.Context(), time.Second), "b", locker.ErrReleased)

		lease = acquire(t, l, locker.Rule{Key: "c", TTL: 5 * time.Second})
		store.Steal("c")
		wantErr(t, lease.Extend(t.Context(), 10*time.Second), "c", locker.ErrLost)
		if lease.Context().Err() == nil {
			t.Fatal("the lease lives on after the server said that it is not ours")
		}
	})
}

func TestExtendStopsAtAtMost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 2 * time.Second, AtMost: 5 * time.Second})
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		lost(t, lease, locker.ErrExpired)
		since(t, start, 4800*time.Millisecond, 200*time.Millisecond)
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
		since(t, start, time.Second, 0)
		wantErr(t, lease.Extend(t.Context(), time.Minute), "a", locker.ErrLost)
		since(t, start, 9*time.Second, time.Second)
		store.Delay(locker.OpRenew, 0)
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
		if calls < 50 || calls > 150 {
			t.Fatalf("5000 leases were renewed in %d calls, want about 70", calls)
		}
		for _, lease := range leases {
			if lease.Context().Err() != nil {
				t.Fatal(context.Cause(lease.Context()))
			}
			release(t, lease)
		}
	})
}

func TestCloseEndsWaitersAndLeasesAndWaitsForRun(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, err := locker.New(store)
		if err != nil {
			t.Fatal(err)
		}
		byHand := acquire(t, l, locker.Rule{Key: "hand", TTL: time.Second})
		running := make(chan struct{})
		ran := make(chan error, 1)
		go func() {
			ran <- locker.Run(t.Context(), l, locker.Rule{Key: "run", TTL: time.Second}, func(ctx context.Context) error {
				close(running)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), locker.ErrClosed) {
					t.Errorf("cause %v", context.Cause(ctx))
				}
				time.Sleep(10 * time.Second) // much longer than the TTL
				if i, _ := store.Inspect(t.Context(), "run"); !i.Held {
					t.Error("the lock was not kept up until the function returned")
				}
				return nil
			})
		}()
		<-running
		waited := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "run"})
			waited <- err
		}()
		synctest.Wait()

		start := time.Now()
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		since(t, start, 10*time.Second, 0)
		wantErr(t, <-waited, "run", locker.ErrClosed)
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		if i, _ := store.Inspect(t.Context(), "run"); i.Held {
			t.Fatal("Run's lease was not released")
		}
		wantErr(t, context.Cause(byHand.Context()), "hand", locker.ErrClosed)
		release(t, byHand)
		_, err = l.Acquire(t.Context(), locker.Rule{Key: "late"})
		wantErr(t, err, "late", locker.ErrClosed)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}) // the bubble fails if a goroutine is left
}

func TestCloseIsBoundedByItsContext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locker.New(store)
		hold := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error {
				<-hold
				return nil
			})
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		since(t, start, time.Second, 0)
		close(hold)
		wg.Wait()
	})
}

func TestCloseFinishesUndos(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locker.New(store)
		store.LoseReplies(locker.OpAcquire, 1)
		store.Fail(locker.OpRelease, errors.New("EOF"))
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		wantErr(t, err, "a", locker.ErrUnavailable)
		time.AfterFunc(3*time.Second, func() { store.Fail(locker.OpRelease, nil) })
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if store.Len() != 0 {
			t.Fatal("Close did not wait for the undo")
		}
	})
}

func TestCloseDoesNotWaitForUndosBeyondItsContext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locker.New(store)
		store.LoseReplies(locker.OpAcquire, 1)
		store.Fail(locker.OpRelease, errors.New("EOF"))
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		wantErr(t, err, "a", locker.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		since(t, start, time.Second, 0)
	})
}

// late is a Store whose first renewal runs late.
type late struct {
	*lockertest.Memory
	calls *atomic.Int32
}

func (s late) Renew(ctx context.Context, cs []locker.Claim) ([]locker.Grant, error) {
	if s.calls.Add(1) == 1 {
		time.Sleep(2 * time.Second)
	}
	return s.Memory.Renew(ctx, cs)
}

func TestALateRenewalDoesNotCutAnExtensionOnTheServer(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, late{store, new(atomic.Int32)}, locker.WithBackoff(locker.Constant(time.Second)))
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		time.Sleep(4 * time.Second)
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second) // the first renewal, for 9 s, has run now
		if i, _ := store.Inspect(t.Context(), "a"); i.Left < 50*time.Minute {
			t.Fatalf("%v left on the server, while the holder counts on %v", i.Left, time.Until(lease.Expires()))
		}
		release(t, lease)
	})
}

func TestAnExtensionThatFailedChangesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 9 * time.Second})
		store.Fail(locker.OpRenew, &locker.Refusal{Err: errors.New("OOM")})
		wantErr(t, lease.Extend(t.Context(), time.Hour), "a", locker.ErrUnavailable)
		store.Fail(locker.OpRenew, nil)
		time.Sleep(time.Minute)
		if i, _ := store.Inspect(t.Context(), "a"); i.Left > 9*time.Second {
			t.Fatalf("%v left: the failed extension was made later", i.Left)
		}
		release(t, lease)
	})
}

func TestAShortExtensionIsRenewedUntilAtMost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 30 * time.Second, AtMost: time.Minute})
		time.Sleep(45 * time.Second)
		if err := lease.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		lost(t, lease, locker.ErrExpired)
		since(t, start, 59*time.Second, time.Second)
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

func TestExtendWhileClosingSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locker.New(store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, lease.Extend(t.Context(), time.Hour), "a", locker.ErrClosed)
	})
}

func TestCloseUndoesTheAcquiresThatItEnds(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locker.New(store)
		store.Delay(locker.OpAcquire, time.Second)
		ended := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			ended <- err
		}()
		synctest.Wait()
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, <-ended, "a", locker.ErrClosed)
		if store.Len() != 0 {
			t.Fatal("the acquire that Close ended has the key")
		}
	})
}

// slow is an Observer that takes its time to hear of a loss.
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
		since(t, start, 1900*time.Millisecond, 100*time.Millisecond)
	})
}
