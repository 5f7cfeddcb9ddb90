package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// reentrant gives a test a Reentrant over an Engine of its own.
func reentrant(t *testing.T, test func(t *testing.T, store *lockertest.Memory, l locker.Locker, e *locker.Engine)) {
	t.Helper()
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		test(t, store, locker.NewReentrant(e), e)
		if store.Len() != 0 || store.Queued() != 0 {
			t.Errorf("%d keys are held, %d are in a queue", store.Len(), store.Queued())
		}
	})
}

// inside acquires with the context of a lease.
func inside(t *testing.T, l locker.Locker, outer *locker.Lease, rule locker.Rule) *locker.Lease {
	t.Helper()
	lease, err := l.Acquire(outer.Context(), rule)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestANestedAcquireJoinsWithoutACall(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		rule := locker.Rule{Key: "a"}
		err := locker.Run(t.Context(), l, rule, func(ctx context.Context) error {
			outer, _ := locker.FromContext(ctx)
			before := calls(store)
			var nest func(ctx context.Context, depth int) error
			nest = func(ctx context.Context, depth int) error {
				inner, ok := locker.FromContext(ctx)
				if !ok || inner.Key() != "a" || inner.Fence() != outer.Fence() || inner.Fence() == 0 || inner.Expires().IsZero() {
					t.Errorf("depth %d: %v", depth, inner)
				}
				if got := len(locker.LeasesFromContext(ctx)); got != depth {
					t.Errorf("depth %d: %d leases in the context", depth, got)
				}
				if depth == 10 {
					return nil
				}
				return locker.Run(ctx, l, rule, func(ctx context.Context) error { return nest(ctx, depth+1) })
			}
			if err := nest(ctx, 1); err != nil {
				return err
			}
			if n := calls(store) - before; n != 0 {
				t.Errorf("%d calls of the Store", n)
			}
			if outer.Context().Err() != nil || store.Len() != 1 {
				t.Error("the nested ones took the lock with them")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := store.Calls(locker.OpAcquire) + store.Calls(locker.OpRelease); n != 2 {
			t.Errorf("%d calls in all", n)
		}
	})
}

func TestHoldsAreReleasedInAnyOrder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, e *locker.Engine) {
				first := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
				second := inside(t, l, first, locker.Rule{Key: "a"})
				holds := []*locker.Lease{first, second, inside(t, l, second, locker.Rule{Key: "a"})}
				stranger := waits(t, e, locker.Rule{Key: "a"})
				for n, i := range order {
					<-time.After(10 * time.Second) // it is renewed
					stranger.waitsStill()
					release(t, holds[i])
					release(t, holds[i]) // again
					if err := holds[i].Extend(t.Context(), time.Minute); !errors.Is(err, locker.ErrReleased) {
						t.Errorf("Extend after Release: %v", err)
					}
					if cause := context.Cause(holds[i].Context()); cause != locker.ErrReleased {
						t.Errorf("cause %v", cause)
					}
					for _, j := range order[n+1:] {
						if err := holds[j].Context().Err(); err != nil {
							t.Errorf("a hold ended with another one: %v", context.Cause(holds[j].Context()))
						}
					}
				}
				release(t, stranger.granted(0))
			})
		})
	}
}

func lostNot(t *testing.T, l *locker.Lease) {
	t.Helper()
	if l.Context().Err() != nil {
		t.Fatal(context.Cause(l.Context()))
	}
}

func TestStrangersWait(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		other := locker.NewReentrant(e)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		if !errors.Is(err, locker.ErrBusy) {
			t.Errorf("the context that was given to Acquire: %v", err)
		}
		for who, try := range map[string]func() (*locker.Lease, error){
			"another Reentrant over the same Locker": func() (*locker.Lease, error) {
				return other.Acquire(lease.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
			},
			"the Locker inside": func() (*locker.Lease, error) {
				return e.Acquire(lease.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
			},
		} {
			if _, err := try(); !errors.Is(err, locker.ErrUnsupported) { // it would wait for itself
				t.Errorf("%s: %v", who, err)
			}
		}
		b := inside(t, l, lease, locker.Rule{Key: "b"}) // another key is another lock
		release(t, lease)
		lostNot(t, b)
		release(t, b)
	})
}

// A released hold lends no rights: who kept its context waits like everybody else, for the next holder too.
func TestAReleasedHoldLetsNobodyIn(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a"})
		inner := inside(t, l, outer, locker.Rule{Key: "a"})
		kept := context.WithoutCancel(inner.Context())
		ended := inner.Context()
		release(t, inner)

		again, err := l.Acquire(kept, locker.Rule{Key: "a", Wait: locker.NoWait}) // the outer hold is in there as well
		if err != nil || again.Fence() != outer.Fence() {
			t.Fatalf("%v %v", again, err)
		}
		release(t, again)
		if _, err := l.Acquire(ended, locker.Rule{Key: "a"}); !errors.Is(err, context.Canceled) {
			t.Fatalf("with a context that has ended: %v", err)
		}
		release(t, outer)

		stranger := acquire(t, e, locker.Rule{Key: "a"})
		_, err = l.Acquire(kept, locker.Rule{Key: "a", Wait: locker.NoWait})
		wantErr(t, err, "a", locker.ErrBusy)
		release(t, stranger)
		fresh, err := l.Acquire(kept, locker.Rule{Key: "a", Wait: locker.NoWait})
		if err != nil || fresh.Fence() <= outer.Fence() {
			t.Fatalf("%v %v", fresh, err)
		}
		release(t, fresh)
	})
}

func TestGoroutinesThatShareAContextAreOneHolder(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			var wg sync.WaitGroup
			meet := make(chan struct{})
			for i := range 2 {
				wg.Go(func() {
					if err := locker.Run(ctx, l, locker.Rule{Key: "a"}, func(context.Context) error {
						if i == 0 {
							meet <- struct{}{} // both are inside
						} else {
							<-meet
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			return nil
		}); err != nil {
			t.Fatal(err)
		}

		// One that outlives Run keeps the lock for as long as it holds it.
		out, end := make(chan struct{}), make(chan struct{})
		_ = locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			lease, err := l.Acquire(ctx, locker.Rule{Key: "a"})
			if err != nil {
				return err
			}
			go func() {
				defer close(end)
				<-out
				lostNot(t, lease)
				release(t, lease)
			}()
			return nil
		})
		stranger := waits(t, e, locker.Rule{Key: "a"})
		<-time.After(time.Hour)
		stranger.waitsStill()
		close(out)
		<-end
		release(t, stranger.granted(0))
	})
}

func TestAfterALossNobodyBeginsAnew(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		first := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		second := inside(t, l, first, locker.Rule{Key: "a"})
		ctx := context.WithoutCancel(second.Context())
		store.Steal("a")
		lost(t, first, locker.ErrLost)
		lost(t, second, locker.ErrLost)
		store.Free("a") // now it could be had
		for _, ctx := range []context.Context{ctx, second.Context(), first.Context()} {
			_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
			wantErr(t, err, "a", locker.ErrLost)
			wantErr(t, locker.RunAll(ctx, l, rulesOf("a", "b"), never(t)), "a", locker.ErrLost)
		}
		for _, lease := range []*locker.Lease{first, second} {
			wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
			wantErr(t, lease.Extend(t.Context(), time.Second), "a", locker.ErrLost)
		}
		_, err := l.Acquire(ctx, locker.Rule{Key: "a"}) // the release changes nothing about it
		wantErr(t, err, "a", locker.ErrLost)
		release(t, acquire(t, l, locker.Rule{Key: "a"})) // with the caller's own context it begins anew
	})
}

func TestANestedRunReportsTheLoss(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			err := locker.Run(ctx, l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
				store.Steal("a")
				<-ctx.Done()
				wantErr(t, context.Cause(ctx), "a", locker.ErrLost)
				return nil
			})
			wantErr(t, err, "a", locker.ErrLost)
			return nil
		})
		wantErr(t, err, "a", locker.ErrLost)
		store.Free("a")
	})
}

func TestModesOfNestedHolds(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a"})
		shared := inside(t, l, outer, locker.Rule{Key: "a", Mode: locker.Shared})
		if shared.Mode() != locker.Shared || outer.Mode() != locker.Exclusive {
			t.Errorf("modes %v, %v", shared.Mode(), outer.Mode())
		}
		again := inside(t, l, shared, locker.Rule{Key: "a"}) // the lease is Exclusive all the same
		release(t, outer)
		release(t, shared)
		release(t, again)
	})
}

func TestExclusiveInsideSharedIsRefusedAtOnce(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a", Mode: locker.Shared})
		inner := inside(t, l, outer, locker.Rule{Key: "a", Mode: locker.Shared})
		if inner.Fence() != outer.Fence() {
			t.Errorf("fence %d inside %d", inner.Fence(), outer.Fence())
		}
		before, start := calls(store), time.Now()
		for _, holder := range []*locker.Lease{outer, inner} {
			_, err := l.Acquire(holder.Context(), locker.Rule{Key: "a"})
			wantErr(t, err, "a", locker.ErrUnsupported)
			wantErr(t, locker.RunAll(holder.Context(), l, rulesOf("a", "b"), never(t)), "a", locker.ErrUnsupported)
		}
		since(t, start, 0, 0)
		if calls(store) != before {
			t.Error("the Store was asked")
		}
		release(t, outer)
		release(t, inner)
	})
}

func TestOnlyWhoHoldsAloneDowngrades(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a"})
		inner := inside(t, l, outer, locker.Rule{Key: "a"})
		wantErr(t, outer.Downgrade(t.Context()), "a", locker.ErrUnsupported)
		release(t, outer)
		if err := inner.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		reader := acquire(t, e, locker.Rule{Key: "a", Mode: locker.Shared, Wait: locker.NoWait})
		_, err := l.Acquire(inner.Context(), locker.Rule{Key: "a"})
		wantErr(t, err, "a", locker.ErrUnsupported)
		release(t, inside(t, l, inner, locker.Rule{Key: "a", Mode: locker.Shared}))
		release(t, reader)
		release(t, inner)
	})
}

func TestNestedRulesThatWouldNeedTheServerAreRefused(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		lease := acquire(t, l, locker.Rule{Key: "a", Once: time.Minute, AtLeast: time.Minute})
		before := calls(store)
		for text, rule := range map[string]locker.Rule{
			"Once":    {Key: "a", Once: time.Hour},
			"AtLeast": {Key: "a", AtLeast: time.Hour},
		} {
			_, err := l.Acquire(lease.Context(), rule)
			wantErr(t, err, "a", locker.ErrUnsupported)
			if !strings.Contains(err.Error(), "put "+text+" there") {
				t.Errorf("the text does not teach: %v", err)
			}
		}
		_, err := l.Acquire(lease.Context(), locker.Rule{Key: "a", TTL: -1})
		wantErr(t, err, "a", locker.ErrInvalidRule)
		release(t, inside(t, l, lease, locker.Rule{Key: "a", Once: time.Minute, AtLeast: time.Second, TTL: time.Hour, Wait: locker.NoWait}))
		if calls(store) != before {
			t.Error("the Store was asked")
		}
		release(t, lease)
		<-time.After(time.Minute)
	})
}

func TestANestedAtMostEndsOneHold(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		start := time.Now()
		outer := acquire(t, l, locker.Rule{Key: "a"})
		inner := inside(t, l, outer, locker.Rule{Key: "a", AtMost: 3 * time.Second})
		if left := time.Until(inner.Expires()); left != 3*time.Second {
			t.Errorf("it expires in %v", left)
		}
		lost(t, inner, locker.ErrExpired)
		since(t, start, 3*time.Second, 0)
		lostNot(t, outer)
		wantErr(t, inner.Release(t.Context()), "a", locker.ErrExpired)
		_, err := l.Acquire(inner.Context(), locker.Rule{Key: "a"})
		wantErr(t, err, "a", locker.ErrExpired)

		last := inside(t, l, outer, locker.Rule{Key: "a", AtMost: 3 * time.Second})
		release(t, outer)
		lost(t, last, locker.ErrExpired)
		synctest.Wait()
		if store.Len() != 0 {
			t.Error("the last hold has expired, and the lock is held")
		}

		outer = acquire(t, l, locker.Rule{Key: "a", AtMost: time.Second})
		inner = inside(t, l, outer, locker.Rule{Key: "a"})
		lost(t, inner, locker.ErrExpired)
		<-time.After(time.Minute)
	})
}

func TestTheWorkOfAllHoldsMakesOnce(t *testing.T) {
	rule := locker.Rule{Key: "a", Once: time.Hour}
	failed := errors.New("failed")
	for name, tc := range map[string]struct{ outer, inner error }{
		"both succeed":    {nil, nil},
		"the inner fails": {nil, failed},
		"the outer fails": {failed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
				err := locker.Run(t.Context(), l, rule, func(ctx context.Context) error {
					if err := locker.Run(ctx, l, rule, func(context.Context) error { return tc.inner }); err != tc.inner {
						t.Error(err)
					}
					return tc.outer
				})
				if err != tc.outer {
					t.Error(err)
				}
				err = locker.Run(t.Context(), l, rule, nothing)
				if done := errors.Is(err, locker.ErrDone); done != (tc.inner == nil && tc.outer == nil) {
					t.Errorf("the second run: %v", err)
				}
			})
		})
	}
}

func TestExtendOfANestedHold(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a"})
		inner := inside(t, l, outer, locker.Rule{Key: "a"})
		if err := inner.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(outer.Expires()); left < 59*time.Minute || left != time.Until(inner.Expires()) {
			t.Errorf("%v left", left)
		}
		if err := inner.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(outer.Expires()); left < 59*time.Minute {
			t.Errorf("a nested hold has shortened the lease of the others to %v", left)
		}
		release(t, inner)
		if err := outer.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(outer.Expires()); left > time.Second {
			t.Errorf("%v left, and nobody else is there", left)
		}
		<-time.After(time.Minute)
		release(t, outer)
	})
}

func TestCloseEndsNestedHolds(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		closed := make(chan error)
		err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			return locker.Run(ctx, l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
				go func() { closed <- e.Close(context.Background()) }()
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), locker.ErrClosed) {
					t.Errorf("cause %v", context.Cause(ctx))
				}
				_, err := l.Acquire(context.WithoutCancel(ctx), locker.Rule{Key: "a"})
				wantErr(t, err, "a", locker.ErrClosed)
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

func TestRunAllJoinsWhatIsHeld(t *testing.T) {
	for name, wrap := range map[string]func(*locker.Engine) locker.Locker{"a Reentrant": wraps["a Reentrant"], "both": wraps["both"]} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(lockertest.NewLocker(t, store))
				err := locker.RunAll(t.Context(), l, rulesOf("b", "c"), func(ctx context.Context) error {
					before := store.Calls(locker.OpAcquire)
					if err := locker.RunAll(ctx, l, rulesOf("d", "c", "b", "e"), func(ctx context.Context) error {
						if n := len(locker.LeasesFromContext(ctx)); n != 6 {
							t.Errorf("%d leases", n)
						}
						return nil
					}); err != nil {
						return err
					}
					if store.Len() != 2 {
						t.Errorf("%d keys are held", store.Len())
					}
					if n := store.Calls(locker.OpAcquire) - before; name == "a Reentrant" && n != 1 {
						t.Errorf("%d calls", n)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if store.Len() != 0 {
					t.Fatal("not released")
				}
			})
		})
	}
}

func TestANestedAcquireIsObservedAsSuch(t *testing.T) {
	for name, own := range map[string]bool{"the Engine's Observer": false, "its own Observer": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				recorder, other := new(lockertest.Recorder), new(lockertest.Recorder)
				e := lockertest.NewLocker(t, store, locker.WithObserver(recorder))
				l, nested := locker.NewReentrant(e), recorder
				if own {
					l, nested = locker.NewReentrant(e, locker.WithObserver(other)), other
				}
				if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
					return locker.Run(ctx, l, locker.Rule{Key: "a"}, nothing)
				}); err != nil {
					t.Fatal(err)
				}
				of := func(r *lockertest.Recorder) string {
					var all []string
					for _, r := range r.Records() {
						all = append(all, fmt.Sprintf("%v:%v:%d", r.Op, r.Outcome.Result, r.Outcome.Calls))
					}
					return strings.Join(all, " ")
				}
				want := "acquire:nested:0 hold:released:0 release:released:0"
				if !own {
					want = "acquire:acquired:1 " + want + " hold:released:0 release:released:1"
				}
				if got := of(nested); got != want {
					t.Errorf("%s, want %s", got, want)
				}
				for _, op := range []locker.Op{locker.OpAcquire, locker.OpHold, locker.OpRelease} {
					if n := nested.Begun(op); n != len(nested.Records(op)) {
						t.Errorf("%d of %v began, %d ended", n, op, len(nested.Records(op)))
					}
				}
			})
		})
	}
}

func TestAReentrantOverAReentrant(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		outermost := locker.NewReentrant(l)
		lease := acquire(t, outermost, locker.Rule{Key: "a"})
		nested := inside(t, outermost, lease, locker.Rule{Key: "a"})
		if err := nested.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		release(t, lease)
		lostNot(t, nested)
		store.Steal("a")
		lost(t, nested, locker.ErrLost)
		store.Free("a")
	})
}

func TestANewReentrantThatCannotBeMeantRefuses(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		var none *locker.Engine
		for name, l := range map[string]locker.Locker{
			"no Locker":    locker.NewReentrant(nil),
			"a nil Engine": locker.NewReentrant(none),
			"a nil option": locker.NewReentrant(e, nil),
		} {
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			wantErr(t, err, "a", locker.ErrUnsupported)
			wantErr(t, locker.RunAll(t.Context(), l, rulesOf("a"), never(t)), "a", locker.ErrUnsupported)
			if !strings.Contains(err.Error(), "NewReentrant") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A hold that is released while the lease is being lost, and one that comes in meanwhile, end one way or the other.
func TestNestedHoldsAndALossAtTheSameTime(t *testing.T) {
	for range 50 {
		reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
			outer := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			ctx := context.WithoutCancel(outer.Context())
			var wg sync.WaitGroup
			store.Steal("a")
			<-time.After(time.Until(outer.Expires()) / 3) // about when the renewal is due
			for range 8 {
				wg.Go(func() {
					for ctx.Err() == nil {
						lease, err := l.Acquire(ctx, locker.Rule{Key: "a"})
						if err != nil {
							wantErr(t, err, "a", locker.ErrLost)
							return
						}
						<-time.After(time.Millisecond)
						if err := lease.Release(t.Context()); err != nil {
							wantErr(t, err, "a", locker.ErrLost)
						}
					}
				})
			}
			wg.Wait()
			wantErr(t, outer.Release(t.Context()), "a", locker.ErrLost)
			store.Free("a")
		})
	}
}
