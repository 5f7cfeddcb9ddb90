package locker_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestRunAllWaitsForEachKeyInItsQueue(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(t, lockertest.NewLocker(t, store, locker.WithFair()))
				other := lockertest.NewLocker(t, store, locker.WithFair())
				b, d := acquire(t, other, locker.Rule{Key: "b"}), acquire(t, other, locker.Rule{Key: "d"})
				done := make(chan error, 1)
				go func() { done <- locker.RunAll(t.Context(), l, rulesOf("d", "c", "b", "a"), nothing) }()
				synctest.Wait()
				later := startWaiting(t, other, locker.Rule{Key: "b"})
				if !isHeld(t, other, "a") || isHeld(t, other, "c") {
					t.Fatal("it does not take its keys in order")
				}
				release(t, b)
				synctest.Wait()
				if ended(later.ended) {
					t.Fatal("a later caller overtook it")
				}
				if !isHeld(t, other, "c") {
					t.Fatal("it did not go on")
				}
				release(t, d)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				release(t, later.awaitGrant(time.Second))
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

// wraps are the types of Lockers through which RunAll may get an Engine.
var wraps = map[string]func(testing.TB, *locker.Engine) locker.Locker{
	"an Engine":      func(_ testing.TB, e *locker.Engine) locker.Locker { return e },
	"another Locker": func(_ testing.TB, e *locker.Engine) locker.Locker { return plain{e} },
	"a Reentrant":    func(t testing.TB, e *locker.Engine) locker.Locker { return locktest.Reentrant(t, e) },
	"both":           func(t testing.TB, e *locker.Engine) locker.Locker { return plain{locktest.Reentrant(t, plain{e})} },
}

func TestRunAllNamesTheKeyThatItCannotHave(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(t, e)
				b := acquire(t, e, locker.Rule{Key: "b"})
				rules := rulesOf("a", "b", "c")
				for i := range rules {
					rules[i].Wait = locker.NoWait
				}
				wantErr(t, locker.RunAll(t.Context(), l, rules, mustNotRun(t)), "b", locker.ErrBusy)

				for i := range rules {
					rules[i].Wait = 3 * time.Second
				}
				start := time.Now()
				wantErr(t, locker.RunAll(t.Context(), l, rules, mustNotRun(t)), "b", locker.ErrBusy)
				checkElapsed(t, start, 3*time.Second, time.Millisecond)

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wantErr(t, locker.RunAll(ctx, l, rulesOf("a", "b", "c"), mustNotRun(t)), "b", context.DeadlineExceeded, locker.ErrBusy)

				wantErr(t, locker.RunAll(t.Context(), l, rulesOf("a", ""), mustNotRun(t)), "", locker.ErrInvalidKey)
				if store.Len() != 1 {
					t.Fatalf("%d keys are held, of which one is the other's", store.Len())
				}
				release(t, b)
			})
		})
	}
}

// The Wait of a rule limits the wait for all keys of one RunAll together, and not for each key
// separately.
func TestRunAllWaitsForAllTogether(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				for _, key := range []string{"a", "b", "c"} {
					lease := acquire(t, e, locker.Rule{Key: key})
					d := map[string]time.Duration{"a": 2 * time.Second, "b": 4 * time.Second, "c": time.Hour}[key]
					time.AfterFunc(d, func() { release(t, lease) })
				}
				rules := rulesOf("a", "b", "c")
				for i := range rules {
					rules[i].Wait = 5 * time.Second
				}
				start := time.Now()
				wantErr(t, locker.RunAll(t.Context(), wrap(t, e), rules, mustNotRun(t)), "c", locker.ErrBusy)
				checkElapsed(t, start, 5*time.Second, 10*time.Millisecond)
				<-time.After(2 * time.Hour)
			})
		})
	}
}

func TestRunAllDoesNotWaitForItself(t *testing.T) {
	for name, wrap := range map[string]func(testing.TB, *locker.Engine) locker.Locker{"an Engine": wraps["an Engine"], "another Locker": wraps["another Locker"]} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(t, lockertest.NewLocker(t, store))
				err := locker.Run(t.Context(), l, locker.Rule{Key: "b"}, func(ctx context.Context) error {
					err := locker.RunAll(ctx, l, rulesOf("a", "b"), mustNotRun(t))
					wantErr(t, err, "b", locker.ErrUnsupported)
					if !strings.Contains(err.Error(), "NewReentrant") {
						t.Errorf("the text does not teach: %v", err)
					}
					return locker.RunAll(ctx, l, rulesOf("c", "d"), nothing)
				})
				if err != nil {
					t.Fatal(err)
				}
				if store.Len() != 0 {
					t.Fatal("something is held")
				}
			})
		})
	}
}

// If RunAll waited for keys in another order than the order of their names, two callers of RunAll
// could wait for each other for ever.
func TestRunAllDoesNotWaitAgainstTheOrder(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(t, e)
				err := locker.RunAll(t.Context(), l, rulesOf("b"), func(ctx context.Context) error {
					if err := locker.RunAll(ctx, l, rulesOf("a"), nothing); err != nil { // possible, because the key is free
						t.Error(err)
					}
					defer release(t, acquire(t, e, locker.Rule{Key: "a"}))
					err := locker.RunAll(ctx, l, rulesOf("a"), mustNotRun(t))
					wantErr(t, err, "a", locker.ErrBusy)
					if !strings.Contains(err.Error(), "already holds b") {
						t.Errorf("the text does not teach: %v", err)
					}
					// A Run waits, because it takes only one key.
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					wantErr(t, locker.Run(ctx, l, locker.Rule{Key: "a"}, mustNotRun(t)), "a", context.DeadlineExceeded)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
