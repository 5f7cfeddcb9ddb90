package locker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// rulesOf returns a rule for each key. Only the field Key of these rules is set.
func rulesOf(keys ...string) (rules []locker.Rule) {
	for _, key := range keys {
		rules = append(rules, locker.Rule{Key: key})
	}
	return rules
}

func nothing(context.Context) error { return nil }

// mustNotRun returns a function that fails the test when it is called.
func mustNotRun(t *testing.T) func(context.Context) error {
	return func(context.Context) error { t.Error("the function ran"); return nil }
}

// plain is a Locker whose type RunAll does not know, like a type of another package.
type plain struct{ locker.Locker }

func TestRunAllTakesEachKeyOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		err := locker.RunAll(t.Context(), l, rulesOf("c", "a", "b", "a"), func(ctx context.Context) error {
			if n := store.Calls(locker.OpAcquire); n != 3 {
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

func TestRunAllHidesNoRefusalOfOneKey(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, backend)
		once := locker.Rule{Key: "b", OnceFor: time.Hour}
		if err := locker.Run(t.Context(), l, once, nothing); err != nil {
			t.Fatal(err)
		}
		wantErr(t, locker.RunAll(t.Context(), l, []locker.Rule{{Key: "a"}, once}, mustNotRun(t)), "b", locker.ErrDone)
		backend.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("OOM")})
		wantErr(t, locker.RunAll(t.Context(), l, rulesOf("a", "c"), mustNotRun(t)), "a", locker.ErrUnavailable)
		backend.Fail(locker.OpAcquire, nil)
	})
}

func TestTheWorkOfRunAllIsDoneAsAWhole(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		rules := []locker.Rule{{Key: "a", OnceFor: time.Hour}, {Key: "b", OnceFor: time.Hour}}
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
			{Key: "a", Mode: locker.Shared, TTL: time.Minute, EndAfter: time.Hour, Wait: locker.NoWait},
			{Key: "a", TTL: 5 * time.Second, Wait: time.Hour},
		}
		if err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
			all := locker.LeasesFromContext(ctx)
			if len(all) != 1 || all[0].Mode() != locker.Exclusive || time.Until(all[0].Expires()) < 50*time.Second {
				t.Errorf("%v", all)
			}
			wantErr(t, locker.RunAll(context.Background(), l, rules, mustNotRun(t)), "a", locker.ErrBusy) // the shorter of the two Waits counts
			<-time.After(2 * time.Hour)
			wantErr(t, context.Cause(ctx), "a", locker.ErrExpired)
			return nil
		}); !errors.Is(err, locker.ErrExpired) {
			t.Fatal(err)
		}
	})
}

func TestRunAllReadsSomeAndWritesOthers(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(t, e)
				rules := []locker.Rule{{Key: "a", Mode: locker.Shared}, {Key: "b"}, {Key: "c", Mode: locker.Shared}}
				reader := acquire(t, e, locker.Rule{Key: "a", Mode: locker.Shared})
				err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
					release(t, acquire(t, e, locker.Rule{Key: "c", Mode: locker.Shared, Wait: locker.NoWait}))
					for _, key := range []string{"a", "b", "c"} {
						_, err := e.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
						wantErr(t, err, key, locker.ErrBusy)
					}
					// The nested acquire shares the lease of its caller as a reader.
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

func TestEachKeyOfRunAllIsObserved(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		recorder := new(lockertest.Recorder)
		l := lockertest.NewLocker(t, store, locker.WithObserver(recorder))
		if err := locker.RunAll(t.Context(), l, rulesOf("a", "b"), nothing); err != nil {
			t.Fatal(err)
		}
		held := acquire(t, lockertest.NewLocker(t, store), locker.Rule{Key: "b"})
		rules := []locker.Rule{{Key: "a"}, {Key: "b", Wait: time.Second}, {Key: "c"}}
		_ = locker.RunAll(t.Context(), l, rules, mustNotRun(t))
		release(t, held)
		var got []string
		for _, r := range recorder.Records(locker.OpAcquire) {
			got = append(got, r.Rule.Key+" "+string(r.Outcome.Result))
		}
		slices.Sort(got)
		if want := []string{"a acquired", "a acquired", "b acquired", "b timeout"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestRunAllTellsTheObserverOfWhatItDidNotComeTo(t *testing.T) {
	for name, kind := range map[string]func(store.Store) store.Store{
		"a Store in memory":     func(s store.Store) store.Store { return s },
		"a Store that may hang": func(s store.Store) store.Store { return struct{ store.Store }{s} },
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
