package locker_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/store"
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

func TestRunAllNamesTheKeyThatItCannotHave(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(e)
				b := acquire(t, e, locker.Rule{Key: "b"})
				rules := rulesOf("a", "b", "c")
				for i := range rules {
					rules[i].Wait = locker.NoWait
				}
				wantErr(t, locker.RunAll(t.Context(), l, rules, never(t)), "b", locker.ErrBusy)

				for i := range rules {
					rules[i].Wait = 3 * time.Second
				}
				start := time.Now()
				wantErr(t, locker.RunAll(t.Context(), l, rules, never(t)), "b", locker.ErrBusy)
				since(t, start, 3*time.Second, time.Millisecond)

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wantErr(t, locker.RunAll(ctx, l, rulesOf("a", "b", "c"), never(t)), "b", context.DeadlineExceeded, locker.ErrBusy)

				wantErr(t, locker.RunAll(t.Context(), l, rulesOf("a", ""), never(t)), "", locker.ErrInvalidKey)
				if store.Len() != 1 {
					t.Fatalf("%d keys are held, of which one is the other's", store.Len())
				}
				release(t, b)
			})
		})
	}
}

// The waits for the keys of one RunAll are not added up.
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
				wantErr(t, locker.RunAll(t.Context(), wrap(e), rules, never(t)), "c", locker.ErrBusy)
				since(t, start, 5*time.Second, 10*time.Millisecond)
				<-time.After(2 * time.Hour)
			})
		})
	}
}

func TestRunAllEndsWithTheFirstLeaseThatIsLost(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(lockertest.NewLocker(t, store))
				mine := errors.New("mine")
				for _, key := range []string{"a", "b", "c"} {
					for _, result := range []error{nil, mine} {
						err := locker.RunAll(t.Context(), l, rulesOf("a", "b", "c"), func(ctx context.Context) error {
							store.Steal(key)
							<-ctx.Done()
							wantErr(t, context.Cause(ctx), key, locker.ErrLost)
							return result
						})
						wantErr(t, err, key, locker.ErrLost)
						if result != nil && !errors.Is(err, result) {
							t.Fatalf("%v hides the function's error", err)
						}
						store.Free(key)
						if store.Len() != 0 {
							t.Fatal("the others were not released")
						}
					}
				}
				err := locker.RunAll(t.Context(), l, rulesOf("a", "b", "c"), func(ctx context.Context) error {
					store.Steal("a")
					store.Steal("c")
					<-time.After(time.Minute)
					return nil
				})
				for _, key := range []string{"a", "c"} {
					if !strings.Contains(err.Error(), "release "+key) {
						t.Errorf("%v does not name %s", err, key)
					}
				}
			})
		})
	}
}

func TestRunAllLosesAKeyWhileItWaitsForTheNext(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				b := acquire(t, e, locker.Rule{Key: "b"})
				time.AfterFunc(time.Second, func() { store.Steal("a") })
				wantErr(t, locker.RunAll(t.Context(), wrap(e), rulesOf("a", "b"), never(t)), "a", locker.ErrLost)
				release(t, b)
				store.Free("a")
				if store.Len() != 0 || store.Queued() != 0 {
					t.Fatal("something is left")
				}
			})
		})
	}
}

func TestRunAllReleasesWhateverBecomesOfTheFunction(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(lockertest.NewLocker(t, store))
				func() {
					defer func() {
						if r := recover(); r != "boom" {
							t.Errorf("recovered %v", r)
						}
					}()
					_ = locker.RunAll(t.Context(), l, rulesOf("a", "b"), func(context.Context) error { panic("boom") })
				}()
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = locker.RunAll(t.Context(), l, rulesOf("a", "b"), func(context.Context) error { runtime.Goexit(); return nil })
				}()
				<-done
				ctx, cancel := context.WithCancelCause(t.Context())
				mine := errors.New("mine")
				if err := locker.RunAll(ctx, l, rulesOf("a", "b"), func(ctx context.Context) error {
					cancel(mine)
					<-ctx.Done()
					return context.Cause(ctx)
				}); err != mine {
					t.Errorf("%v, want the function's error unchanged", err)
				}
				if store.Len() != 0 {
					t.Fatal("not released")
				}
			})
		})
	}
}

func TestAReleaseThatFailsLeavesNoOtherKeyHeld(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		start := time.Now()
		if err := locker.RunAll(t.Context(), l, rulesOf("a", "b", "c"), func(context.Context) error {
			store.Fail(locker.OpRelease, errors.New("EOF"))
			start = time.Now()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		since(t, start, 2*time.Second, 10*time.Millisecond) // for all of them, not for each
		store.Fail(locker.OpRelease, nil)
		<-time.After(2 * time.Second)
		if store.Len() != 0 {
			t.Fatal("not released")
		}
	})
}

func TestAnUnansweredStepForAllIsUndone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.LoseReplies(locker.OpAcquire, 1)
		rules := rulesOf("a", "b")
		rules[1].Wait = locker.NoWait
		err := locker.RunAll(t.Context(), l, rules, never(t))
		wantErr(t, err, "b", locker.ErrUnavailable)
		wantNot(t, err, locker.ErrBusy)
		synctest.Wait()
		if store.Len() != 0 {
			t.Fatal("what the server has granted was not undone")
		}

		store.LoseReplies(locker.OpAcquire, 1)
		start := time.Now()
		if err := locker.RunAll(t.Context(), l, rulesOf("a", "b"), nothing); err != nil {
			t.Fatal(err)
		}
		since(t, start, 0, time.Second)

		store.Delay(locker.OpAcquire, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err = locker.RunAll(ctx, l, rulesOf("a", "b"), never(t))
		wantErr(t, err, "a", context.DeadlineExceeded, locker.ErrUnavailable)
		<-time.After(time.Minute)
		if store.Len() != 0 {
			t.Fatal("the late execution has taken something")
		}
	})
}

func TestRunAllHidesNoRefusalOfOneKey(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, backend)
		once := locker.Rule{Key: "b", Once: time.Hour}
		if err := locker.Run(t.Context(), l, once, nothing); err != nil {
			t.Fatal(err)
		}
		held := acquire(t, l, locker.Rule{Key: "a"})
		wantErr(t, locker.RunAll(t.Context(), l, []locker.Rule{{Key: "a"}, once}, never(t)), "b", locker.ErrDone)
		release(t, held)
		backend.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("OOM")})
		wantErr(t, locker.RunAll(t.Context(), l, rulesOf("a", "c"), never(t)), "a", locker.ErrUnavailable)
		backend.Fail(locker.OpAcquire, nil)
	})
}

func TestTheWorkOfRunAllIsDoneAsAWhole(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		rules := []locker.Rule{{Key: "a", Once: time.Hour}, {Key: "b", Once: time.Hour}}
		err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
			store.Steal("a")
			<-ctx.Done()
			return nil
		})
		wantErr(t, err, "a", locker.ErrLost)
		store.Free("a")
		runs := 0
		for range 2 {
			err = locker.RunAll(t.Context(), l, rules, func(context.Context) error { runs++; return nil })
		}
		if runs != 1 {
			t.Fatalf("%d runs, %v", runs, err)
		}
		wantErr(t, err, "a", locker.ErrDone)
	})
}

func TestAKeyGivenTwiceCountsOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		rules := []locker.Rule{
			{Key: "a", Mode: locker.Shared, TTL: time.Minute, AtMost: time.Hour, Wait: locker.NoWait},
			{Key: "a", TTL: 5 * time.Second, Wait: time.Hour},
		}
		if err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
			all := locker.LeasesFromContext(ctx)
			if len(all) != 1 || all[0].Mode() != locker.Exclusive || time.Until(all[0].Expires()) < 50*time.Second {
				t.Errorf("%v", all)
			}
			wantErr(t, locker.RunAll(context.Background(), l, rules, never(t)), "a", locker.ErrBusy) // the shorter Wait
			<-time.After(2 * time.Hour)
			wantErr(t, context.Cause(ctx), "a", locker.ErrExpired)
			return nil
		}); !errors.Is(err, locker.ErrExpired) {
			t.Fatal(err)
		}
	})
}

func TestRunAllDoesNotWaitForItself(t *testing.T) {
	for name, wrap := range map[string]func(*locker.Engine) locker.Locker{"an Engine": wraps["an Engine"], "another Locker": wraps["another Locker"]} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(lockertest.NewLocker(t, store))
				err := locker.Run(t.Context(), l, locker.Rule{Key: "b"}, func(ctx context.Context) error {
					err := locker.RunAll(ctx, l, rulesOf("a", "b"), never(t))
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

// Two of them would wait for each other for ever, if RunAll waited against the order.
func TestRunAllDoesNotWaitAgainstTheOrder(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(e)
				err := locker.RunAll(t.Context(), l, rulesOf("b"), func(ctx context.Context) error {
					if err := locker.RunAll(ctx, l, rulesOf("a"), nothing); err != nil { // it is free
						t.Error(err)
					}
					defer release(t, acquire(t, e, locker.Rule{Key: "a"}))
					err := locker.RunAll(ctx, l, rulesOf("a"), never(t))
					wantErr(t, err, "a", locker.ErrBusy)
					if !strings.Contains(err.Error(), "already holds b") {
						t.Errorf("the text does not teach: %v", err)
					}
					// A plain Run waits: it has no order to keep.
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					wantErr(t, locker.Run(ctx, l, locker.Rule{Key: "a"}, never(t)), "a", context.DeadlineExceeded)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestRunAllReadsSomeAndWritesOthers(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(e)
				rules := []locker.Rule{{Key: "a", Mode: locker.Shared}, {Key: "b"}, {Key: "c", Mode: locker.Shared}}
				reader := acquire(t, e, locker.Rule{Key: "a", Mode: locker.Shared})
				err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
					release(t, acquire(t, e, locker.Rule{Key: "c", Mode: locker.Shared, Wait: locker.NoWait}))
					for _, key := range []string{"a", "b", "c"} {
						_, err := e.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
						wantErr(t, err, key, locker.ErrBusy)
					}
					// It reads along what its caller reads.
					return locker.RunAll(ctx, l, []locker.Rule{{Key: "a", Mode: locker.Shared}, {Key: "d"}}, nothing)
				})
				if err != nil {
					t.Error(err)
				}
				release(t, reader)
				if store.Len() != 0 {
					t.Error("something is held")
				}
			})
		})
	}
}

func TestCloseEndsRunAll(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(e)
				other := acquire(t, lockertest.NewLocker(t, store), locker.Rule{Key: "z"})
				var wg sync.WaitGroup
				var waited error
				wg.Go(func() { waited = locker.RunAll(t.Context(), l, rulesOf("y", "z"), never(t)) })
				wg.Go(func() {
					if err := locker.RunAll(t.Context(), l, rulesOf("a", "b"), func(ctx context.Context) error {
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), locker.ErrClosed) {
							t.Errorf("cause %v", context.Cause(ctx))
						}
						<-time.After(time.Minute) // Close waits
						return nil
					}); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
				wg.Wait()
				wantErr(t, waited, "z", locker.ErrClosed)
				if store.Len() != 1 {
					t.Error("something is held")
				}
				wantErr(t, locker.RunAll(t.Context(), l, rulesOf("a", "b"), never(t)), "a", locker.ErrClosed)
				release(t, other)
			})
		})
	}
}

func TestEachKeyOfRunAllIsObserved(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		recorder := new(lockertest.Recorder)
		l := lockertest.NewLocker(t, store, locker.WithObserver(recorder))
		if err := locker.RunAll(t.Context(), l, rulesOf("a", "b"), nothing); err != nil {
			t.Fatal(err)
		}
		held := acquire(t, lockertest.NewLocker(t, store), locker.Rule{Key: "b"})
		rules := []locker.Rule{{Key: "a"}, {Key: "b", Wait: time.Second}, {Key: "c"}}
		_ = locker.RunAll(t.Context(), l, rules, never(t))
		release(t, held)
		var got []string
		for _, r := range recorder.Records(locker.OpAcquire) {
			got = append(got, r.Rule.Key+" "+string(r.Outcome.Result))
		}
		slices.Sort(got)
		if want := []string{"a acquired", "a acquired", "b acquired", "b timeout", "c timeout"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestRunAllTellsTheObserverOfWhatItDidNotComeTo(t *testing.T) {
	for name, kind := range map[string]func(locker.Store) locker.Store{
		"in one step":         func(s locker.Store) locker.Store { return s },
		"one after the other": func(s locker.Store) locker.Store { return struct{ locker.Store }{s} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				var rec lockertest.Recorder
				l := lockertest.NewLocker(t, kind(store), locker.WithObserver(&rec))
				store.Occupy("a", time.Minute)
				rules := rulesOf("a", "b")
				for i := range rules {
					rules[i].Wait = locker.NoWait
				}
				err := locker.RunAll(t.Context(), l, rules, func(context.Context) error { return nil })
				wantErr(t, err, "a", locker.ErrBusy)
				gone, cancel := context.WithCancel(t.Context())
				cancel()
				if err := locker.RunAll(gone, l, rulesOf("a", "b"), func(context.Context) error { return nil }); !errors.Is(err, context.Canceled) {
					t.Errorf("of a context that has ended: %v", err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := l.Close(ctx); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		})
	}
}
