package locker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// checkHeld fails the test if the context of l has ended.
func checkHeld(t *testing.T, l *locker.Lease) {
	t.Helper()
	if l.Context().Err() != nil {
		t.Fatal(context.Cause(l.Context()))
	}
}

func TestAfterALossNobodyBeginsAnew(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		first := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		second := acquireInside(t, l, first, locker.Rule{Key: "a"})
		ctx := context.WithoutCancel(second.Context())
		store.Steal("a")
		lost(t, first, locker.ErrLost)
		lost(t, second, locker.ErrLost)
		store.Free("a") // from now on, the key is free
		for _, ctx := range []context.Context{ctx, second.Context(), first.Context()} {
			_, err := l.Acquire(ctx, locker.Rule{Key: "a"})
			wantErr(t, err, "a", locker.ErrLost)
			wantErr(t, locker.RunAll(ctx, l, rulesOf("a", "b"), mustNotRun(t)), "a", locker.ErrLost)
		}
		for _, lease := range []*locker.Lease{first, second} {
			wantErr(t, lease.Release(t.Context()), "a", locker.ErrLost)
			wantErr(t, lease.Extend(t.Context(), time.Second), "a", locker.ErrLost)
		}
		_, err := l.Acquire(ctx, locker.Rule{Key: "a"}) // the release does not change that this context has lost its lease
		wantErr(t, err, "a", locker.ErrLost)
		release(t, acquire(t, l, locker.Rule{Key: "a"})) // the caller's own context gets a new lease
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

func TestTheEndAfterOfTheFirstHoldEndsAllHolds(t *testing.T) {
	reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
		start := time.Now()
		outer := acquire(t, l, locker.Rule{Key: "a", EndAfter: 3 * time.Second})
		inner := acquireInside(t, l, outer, locker.Rule{Key: "a", EndAfter: time.Second})
		lost(t, inner, locker.ErrExpired)
		lost(t, outer, locker.ErrExpired)
		checkElapsed(t, start, 2900*time.Millisecond, 100*time.Millisecond)
		_, err := l.Acquire(inner.Context(), locker.Rule{Key: "a"})
		wantErr(t, err, "a", locker.ErrExpired)
		<-time.After(time.Second) // the server keeps the lease a little longer than its holder
	})
}

func TestTheWorkOfAllHoldsMakesOnce(t *testing.T) {
	rule := locker.Rule{Key: "a", OnceFor: time.Hour}
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
		inner := acquireInside(t, l, outer, locker.Rule{Key: "a"})
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
		<-time.After(2 * time.Hour)
		if left := time.Until(outer.Expires()); left < outer.TTL()/2 {
			t.Errorf("a nested hold has shortened the renewals of the others: %v left of %v", left, outer.TTL())
		}
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

// A nested hold may be released or begun while the lease is being lost. In both cases the nested
// hold ends.
func TestNestedHoldsAndALossAtTheSameTime(t *testing.T) {
	for range 50 {
		reentrant(t, func(t *testing.T, store *lockertest.Memory, l locker.Locker, _ *locker.Engine) {
			outer := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			ctx := context.WithoutCancel(outer.Context())
			var wg sync.WaitGroup
			store.Steal("a")
			<-time.After(time.Until(outer.Expires()) / 3) // at about this time the renewal is due
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
