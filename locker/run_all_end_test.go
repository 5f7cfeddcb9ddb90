package locker_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestRunAllEndsWithTheFirstLeaseThatIsLost(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(t, lockertest.NewLocker(t, store))
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
				wantErr(t, locker.RunAll(t.Context(), wrap(t, e), rulesOf("a", "b"), mustNotRun(t)), "a", locker.ErrLost)
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
				l := wrap(t, lockertest.NewLocker(t, store))
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
		// The time-out is for all releases together, and not for each of them.
		checkElapsed(t, start, 2*time.Second, 10*time.Millisecond)
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
		rules := rulesOf("a", "b")
		rules[1].Wait = locker.NoWait
		store.LoseReplies(locker.OpAcquire, 2) // the server has granted both, and says so to the same tokens
		if err := locker.RunAll(t.Context(), l, rules, nothing); err != nil {
			t.Fatal(err)
		}
		store.LoseReplies(locker.OpAcquire, 1000)
		err := locker.RunAll(t.Context(), l, rules, mustNotRun(t))
		wantErr(t, err, "a", locker.ErrUnavailable)
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
		checkElapsed(t, start, 0, time.Second)

		store.Delay(locker.OpAcquire, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err = locker.RunAll(ctx, l, rulesOf("a", "b"), mustNotRun(t))
		wantErr(t, err, "a", context.DeadlineExceeded, locker.ErrUnavailable)
		<-time.After(time.Minute)
		if store.Len() != 0 {
			t.Fatal("the late execution has taken something")
		}
	})
}

func TestCloseEndsRunAll(t *testing.T) {
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				e := lockertest.NewLocker(t, store)
				l := wrap(t, e)
				other := acquire(t, lockertest.NewLocker(t, store), locker.Rule{Key: "z"})
				var wg sync.WaitGroup
				var waited error
				wg.Go(func() { waited = locker.RunAll(t.Context(), l, rulesOf("y", "z"), mustNotRun(t)) })
				wg.Go(func() {
					if err := locker.RunAll(t.Context(), l, rulesOf("a", "b"), func(ctx context.Context) error {
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), locker.ErrClosed) {
							t.Errorf("cause %v", context.Cause(ctx))
						}
						<-time.After(time.Minute) // meanwhile Close waits
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
				wantErr(t, locker.RunAll(t.Context(), l, rulesOf("a", "b"), mustNotRun(t)), "a", locker.ErrClosed)
				release(t, other)
			})
		})
	}
}

// onGrant is an Observer that calls a function when an acquire has got its lease.
type onGrant struct{ call func() }

func (o onGrant) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, func(out locker.Outcome) {
		if op == locker.OpAcquire && out.Err == nil {
			o.call()
		}
	}
}

// Close begins between the grant and the work. The work does not run, so KeepFor does not keep the
// key from another process.
func TestWorkThatCloseHasKeptFromRunningKeepsNoKey(t *testing.T) {
	for name, run := range map[string]func(ctx context.Context, l locker.Locker, rule locker.Rule, fn func(context.Context) error) error{
		"Run": locker.Run,
		"RunAll": func(ctx context.Context, l locker.Locker, rule locker.Rule, fn func(context.Context) error) error {
			return locker.RunAll(ctx, l, []locker.Rule{rule}, fn)
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				var e *locker.Engine
				closed := make(chan error, 1)
				e = lockertest.NewLocker(t, store, locker.WithObserver(onGrant{func() {
					go func() { closed <- e.Close(context.WithoutCancel(t.Context())) }()
					<-time.After(time.Second) // now Close waits for the calls under way
				}}))
				err := run(t.Context(), e, locker.Rule{Key: "a", KeepFor: time.Hour}, mustNotRun(t))
				wantErr(t, err, "a", locker.ErrClosed)
				if err := <-closed; err != nil {
					t.Error(err)
				}
				if store.Len() != 0 {
					t.Error("the key is kept although nothing has run")
				}
			})
		})
	}
}

// A part whose RunAll fails does not cancel the KeepFor of another part, whose work has run.
func TestAFailedNestedRunAllLeavesTheKeepForOfItsOuterWork(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		l, err := locker.NewReentrant(e)
		if err != nil {
			t.Fatal(err)
		}
		z := acquire(t, e, locker.Rule{Key: "z"})
		failed := make(chan error, 1)
		err = locker.Run(t.Context(), l, locker.Rule{Key: "job", KeepFor: time.Hour}, func(ctx context.Context) error {
			go func() { failed <- locker.RunAll(ctx, l, rulesOf("job", "z"), mustNotRun(t)) }()
			<-time.After(time.Second)
			return nil
		})
		if err != nil || <-failed == nil {
			t.Fatal(err, "or the nested RunAll has not failed")
		}
		release(t, z)
		<-time.After(time.Second)
		if _, err := e.Acquire(t.Context(), locker.Rule{Key: "job", Wait: locker.NoWait}); !errors.Is(err, locker.ErrBusy) {
			t.Errorf("%v: the key is not kept", err)
		}
	})
}
