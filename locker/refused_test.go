package locker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The functions that make metadata and pauses panic. Nothing is then held or left.
func TestAFunctionOfTheCallerThatPanicsLeavesNothing(t *testing.T) {
	for name, opt := range map[string]locker.Option{
		"metadata":        locker.WithMetadata(func(context.Context) string { panic("metadata") }),
		"the first pause": locker.WithBackoff(func(func(time.Duration) bool) { panic("backoff") }),
		"a pause after other pauses": locker.WithBackoff(func(yield func(time.Duration) bool) {
			_ = yield(time.Second)
			_ = yield(2 * time.Second)
			panic("backoff")
		}),
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l, other := lockertest.NewLocker(t, store, opt, locker.WithoutQueue()), lockertest.NewLocker(t, store.NewProcess())
				lease := acquire(t, other, locker.Rule{Key: "a"})
				panicked := false
				func() {
					defer func() { panicked = recover() != nil }()
					_, _ = l.Acquire(t.Context(), locker.Rule{Key: "a"})
				}()
				if !panicked {
					t.Error("positive control: nothing panicked")
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
				<-time.After(time.Minute)
				nothingLeft(t, store)
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A Locker that is nil, as after an error of New that nobody has checked, and a function that is nil
// are refused with an error that says what to give.
func TestALockerOrAFunctionThatIsNilIsRefused(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, rule := lockertest.NewLocker(t, store), locker.Rule{Key: "a"}
		nop := func(context.Context) error { return nil }
		errs := []error{
			locker.Run(t.Context(), l, rule, nil), locker.RunAll(t.Context(), l, []locker.Rule{rule}, nil), locker.RunAll(t.Context(), l, nil, nil),
		}
		for _, none := range []locker.Locker{nil, (*locker.Engine)(nil)} {
			_, err := locker.NewReentrant(none)
			errs = append(errs, err, locker.Check(none, rule), locker.Drain(t.Context(), none),
				locker.Run(t.Context(), none, rule, nop), locker.RunAll(t.Context(), none, []locker.Rule{rule}, nop))
		}
		for i, err := range errs {
			if err == nil || !strings.Contains(err.Error(), " is nil; ") {
				t.Errorf("call %d: %v", i, err)
			}
		}
		nothingLeft(t, store)
	})
}

// A caller whose context holds the key is refused at once, by every Locker that is not reentrant.
func TestNoLockerWaitsForItsOwnCaller(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		plain := lockertest.NewLocker(t, store)
		for _, l := range []locker.Locker{plain, must(locker.NewStriped(plain, 1))} {
			for _, modes := range [][2]locker.Mode{{locker.Exclusive, locker.Exclusive}, {locker.Exclusive, locker.Shared}, {locker.Shared, locker.Exclusive}} {
				err := locker.Run(t.Context(), l, locker.Rule{Key: "a", Mode: modes[0]}, func(ctx context.Context) error {
					_, err := l.Acquire(ctx, locker.Rule{Key: "a", Mode: modes[1]})
					return err
				})
				wantErr(t, err, "a", locker.ErrSelfDeadlock)
				wantErr(t, err, "a", locker.ErrUnsupported)
			}
			if err := locker.Run(t.Context(), l, locker.Rule{Key: "a", Mode: locker.Shared}, func(ctx context.Context) error {
				return locker.Run(ctx, l, locker.Rule{Key: "a", Mode: locker.Shared}, func(context.Context) error { return nil })
			}); err != nil {
				t.Errorf("a reader that reads again: %v", err)
			}
		}
	})
}

// A lease whose whole time is kept free for clocks that differ could never be used. It is refused
// before anything is sent.
func TestALeaseThatCouldNeverBeUsedIsRefused(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		for _, rule := range []locker.Rule{{Key: "a", TTL: time.Millisecond}, {Key: "a", TTL: 2 * time.Millisecond}, {Key: "a", EndAfter: time.Millisecond}} {
			_, err := l.Acquire(t.Context(), rule)
			wantErr(t, err, "a", locker.ErrInvalidRule)
			if err := locker.Check(l, rule); err == nil {
				t.Errorf("Check accepts %+v", rule)
			}
		}
		if _, err := locktest.NewEngine(store, locker.WithTTL(2*time.Millisecond)); err == nil {
			t.Error("WithTTL accepts 2 ms")
		}
		release(t, acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Millisecond}))
	})
}

// A nested RunAll that wants further units of a semaphore does not wait for them. Its error says
// that the caller holds units, and not that the keys are in the wrong order.
func TestARunAllThatWantsFurtherUnitsSaysWhyItDoesNotWait(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, rules := lockertest.NewLocker(t, store), []locker.Rule{{Key: "a", Limit: 2}}
		acquire(t, l, rules[0]) // of another caller
		err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
			return locker.RunAll(ctx, l, rules, func(context.Context) error { return nil })
		})
		wantErr(t, err, "a", locker.ErrBusy)
		if !strings.Contains(err.Error(), "holds units of this key") || strings.Contains(err.Error(), "sorts behind") {
			t.Error(err)
		}
	})
}

// must returns the Locker of a constructor that cannot fail.
func must(l locker.Locker, err error) locker.Locker {
	if err != nil {
		panic(err)
	}
	return l
}
