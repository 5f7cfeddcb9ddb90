package locker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// keysOf are rules without any wish.
func rulesOf(keys ...string) (rules []locker.Rule) {
	for _, key := range keys {
		rules = append(rules, locker.Rule{Key: key})
	}
	return rules
}

func nothing(context.Context) error { return nil }

func never(t *testing.T) func(context.Context) error {
	return func(context.Context) error { t.Error("the function ran"); return nil }
}

// plain is a Locker of which nothing is known, as those of other packages are.
type plain struct{ locker.Locker }

func TestRunAllTakesAllKeysInOneStep(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		err := locker.RunAll(t.Context(), l, rulesOf("c", "a", "b", "a"), func(ctx context.Context) error {
			if n := store.Calls(locker.OpAcquire); n != 1 {
				t.Errorf("%d calls", n)
			}
			var keys []string
			for _, lease := range locker.LeasesFromContext(ctx) {
				keys = append(keys, lease.Key())
				if lease.Fence() == 0 || lease.Context().Err() != nil {
					t.Errorf("%v is no lease", lease)
				}
			}
			if !slices.Equal(keys, []string{"c", "b", "a"}) {
				t.Errorf("leases of %q", keys)
			}
			if inner, _ := locker.FromContext(ctx); inner.Key() != "c" {
				t.Errorf("the innermost is %v", inner)
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
}

func TestRunAllOfNothingRuns(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		mine := errors.New("mine")
		if err := locker.RunAll(t.Context(), l, nil, func(context.Context) error { return mine }); err != mine {
			t.Fatal(err)
		}
		if store.Calls(locker.OpAcquire) != 0 {
			t.Fatal("the Store was asked")
		}
	})
}

func TestRunAllWaitsForEachKeyInItsQueue(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(lockertest.NewLocker(t, store, locker.WithFair()))
				other := lockertest.NewLocker(t, store, locker.WithFair())
				b, d := acquire(t, other, locker.Rule{Key: "b"}), acquire(t, other, locker.Rule{Key: "d"})
				done := make(chan error, 1)
				go func() { done <- locker.RunAll(t.Context(), l, rulesOf("d", "c", "b", "a"), nothing) }()
				synctest.Wait()
				later := waits(t, other, locker.Rule{Key: "b"})
				if !isHeld(t, other, "a") || isHeld(t, other, "c") {
					t.Fatal("it does not take its keys in order")
				}
				release(t, b)
				synctest.Wait()
				if ended(later.done) {
					t.Fatal("who came later overtook it")
				}
				if !isHeld(t, other, "c") {
					t.Fatal("it did not go on")
				}
				release(t, d)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				release(t, later.granted(time.Second))
				if store.Len() != 0 || store.Queued() != 0 {
					t.Fatalf("%d keys are held, %d are in a queue", store.Len(), store.Queued())
				}
			})
		})
	}
}

func isHeld(t *testing.T, l *locker.Engine, key string) bool {
	t.Helper()
	i, err := l.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return i.Held
}

// wraps are ways to give an Engine to RunAll.
var wraps = map[string]func(*locker.Engine) locker.Locker{
	"an Engine":      func(e *locker.Engine) locker.Locker { return e },
	"another Locker": func(e *locker.Engine) locker.Locker { return plain{e} },
	"a Reentrant":    func(e *locker.Engine) locker.Locker { return locker.NewReentrant(e) },
	"both":           func(e *locker.Engine) locker.Locker { return plain{locker.NewReentrant(plain{e})} },
}
