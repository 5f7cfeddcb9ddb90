package locker_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

type valueKey struct{}

func TestRunHandsTheLeaseAndTheCallersContextOn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, 7))
		reason := errors.New("the caller's reason")
		err := locker.Run(ctx, l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			lease, ok := locker.FromContext(ctx)
			if !ok || lease.Key() != "a" || lease.Fence() == 0 || ctx.Value(valueKey{}) != 7 {
				t.Error("the context has no lease, or lost its values")
			}
			if err := locker.Run(ctx, l, locker.Rule{Key: "b"}, func(ctx context.Context) error {
				all := locker.LeasesFromContext(ctx)
				if len(all) != 2 || all[0].Key() != "b" || all[1].Key() != "a" {
					t.Errorf("%d leases", len(all))
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			cancel(reason)
			<-ctx.Done()
			if context.Cause(ctx) != reason {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			if lease.Context().Err() != nil {
				t.Error("the caller's cancellation ended the lease")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if store.Len() != 0 {
			t.Fatal("not released")
		}
		if _, ok := locker.FromContext(ctx); ok || locker.LeasesFromContext(ctx) != nil {
			t.Fatal("the caller's own context has a lease")
		}
	})
}

func TestRunReturnsTheFunctionsErrorUnchanged(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		mine := errors.New("mine")
		if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error { return mine }); err != mine {
			t.Fatalf("%#v", err)
		}
		// If a release has no answer, Run returns no error.
		store.Fail(locker.OpRelease, errors.New("EOF"))
		if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		store.Fail(locker.OpRelease, nil)
	})
}

func TestRunReportsALossEvenWhenTheWorkSucceeded(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		mine := errors.New("mine")
		for _, result := range []error{nil, mine} {
			err := locker.Run(t.Context(), l, locker.Rule{Key: "a", TTL: time.Second}, func(ctx context.Context) error {
				store.Steal("a")
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), locker.ErrLost) {
					t.Error(context.Cause(ctx))
				}
				return result
			})
			wantErr(t, err, "a", locker.ErrLost)
			if result != nil && !errors.Is(err, result) {
				t.Fatalf("%v hides the function's error", err)
			}
			store.Free("a")
		}
		err := locker.Run(t.Context(), l, locker.Rule{Key: "a", EndAfter: time.Second}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		wantErr(t, err, "a", locker.ErrExpired)
	})
}

func TestRunReleasesAfterPanicAndGoexit(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error { panic("boom") })
		}()
		if store.Len() != 0 {
			t.Fatal("not released after the panic")
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		<-done
		if store.Len() != 0 {
			t.Fatal("not released after Goexit")
		}
	})
}

func TestOnceRunsOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		rule := locker.Rule{Key: "a", OnceFor: time.Hour}
		runs := 0
		work := func(context.Context) error { runs++; return nil }
		failed := errors.New("failed")
		if err := locker.Run(t.Context(), l, rule, func(context.Context) error { return failed }); err != failed {
			t.Fatal(err)
		}
		if err := locker.Run(t.Context(), l, rule, work); err != nil {
			t.Fatal(err)
		}
		wantErr(t, locker.Run(t.Context(), l, rule, work), "a", locker.ErrDone)
		if runs != 1 {
			t.Fatalf("%d runs", runs)
		}
		if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, work); err != nil {
			t.Fatal("a Rule without OnceFor is concerned: ", err)
		}
		time.Sleep(time.Hour)
		if err := locker.Run(t.Context(), l, rule, work); err != nil {
			t.Fatal("the mark does not run out: ", err)
		}
		// It is unknown whether the work counts as done, so the error is reported.
		store.Fail(locker.OpRelease, errors.New("EOF"))
		err := locker.Run(t.Context(), l, locker.Rule{Key: "b", OnceFor: time.Hour}, work)
		wantErr(t, err, "b", locker.ErrUnavailable)
		store.Fail(locker.OpRelease, nil)
	})
}
