package locker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestCloseEndsWaitersAndLeasesAndWaitsForRun(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, err := locktest.NewEngine(store)
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
		checkElapsed(t, start, 10*time.Second, 0)
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
	}) // the bubble fails at its end if a goroutine is left
}

func TestCloseIsBoundedByItsContext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locktest.NewEngine(store)
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
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "functions of Run") {
			t.Fatal(err)
		}
		checkElapsed(t, start, time.Second, 0)
		close(hold)
		wg.Wait()
	})
}

// A program may close its Locker with a context that a signal has ended. Close then fails only if
// something was left. The bubble's clock stands still while a goroutine runs, so that the moment
// for which Close waits is long enough on every machine.
func TestCloseWithAnEndedContextFailsOnlyIfSomethingIsLeft(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ended, end := context.WithCancel(t.Context())
		end()
		unused, used, busy := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store), newEngine(t, store)
		release(t, acquire(t, used, locker.Rule{Key: "order:42"}))
		for name, l := range map[string]*locker.Engine{"unused": unused, "used": used, "used, again": used} {
			if err := l.Close(ended); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		runs, goOn := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			_ = locker.Run(t.Context(), busy, locker.Rule{Key: "order:42"}, func(context.Context) error {
				close(runs)
				<-goOn
				return nil
			})
		})
		<-runs
		if err := busy.Close(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("positive control: a Close while a function runs: %v", err)
		}
		close(goOn)
		all.Wait()
	})
}

// newEngine makes a Locker that the test does not close.
func newEngine(t *testing.T, store *lockertest.Memory) *locker.Engine {
	t.Helper()
	l, err := locktest.NewEngine(store)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// loseAcquire asks for a lock, whose grant is lost. Its undo fails from then on. The result is the
// error of the acquire.
func loseAcquire(t *testing.T, l *locker.Engine, store *lockertest.Memory, rule locker.Rule) error {
	t.Helper()
	rule.Wait = locker.NoWait
	store.LoseReplies(locker.OpAcquire, 1000)
	store.Fail(locker.OpRelease, errors.New("EOF"))
	_, err := l.Acquire(t.Context(), rule)
	wantErr(t, err, rule.Key, locker.ErrUnavailable)
	store.LoseReplies(locker.OpAcquire, 0)
	return err
}

func TestCloseFinishesUndos(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locktest.NewEngine(store)
		_ = loseAcquire(t, l, store, locker.Rule{Key: "a"})
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
		l, _ := locktest.NewEngine(store)
		_ = loseAcquire(t, l, store, locker.Rule{Key: "a"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "releases that the server has not answered") {
			t.Fatal(err)
		}
		checkElapsed(t, start, time.Second, 0)
	})
}

// The context of Close has no deadline, as in a program that defers Close, and the server is gone
// for good.
func TestCloseWithoutADeadlineEndsThoughTheServerIsGone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locktest.NewEngine(store)
		_ = loseAcquire(t, l, store, locker.Rule{Key: "a", TTL: time.Hour})
		ran := make(chan struct{})
		go func() {
			_ = locker.Run(t.Context(), l, locker.Rule{Key: "b"}, func(context.Context) error {
				close(ran)
				time.Sleep(time.Minute)
				return nil
			})
		}()
		<-ran
		start := time.Now()
		if err := l.Close(t.Context()); !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "releases that the server has not answered") {
			t.Error(err)
		}
		checkElapsed(t, start, time.Minute+5*time.Second, 3*time.Second) // Run waits for its release, too
	})
	t.Parallel()
	server := redistest.Start(t)
	l, err := locker.Open("redis://" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	lease := acquire(t, l, locker.Rule{Key: "order:42"})
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := lease.Release(ctx); err == nil {
		t.Fatal("positive control: a server that stands still has answered")
	}
	start := time.Now()
	err = l.Close(t.Context())
	if took := time.Since(start); !errors.Is(err, locker.ErrUnavailable) || took > 6*time.Second+slack {
		t.Errorf("after %v: %v", took, err)
	}
}

func TestCloseUndoesTheAcquiresThatItEnds(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l, _ := locktest.NewEngine(store)
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

// A holder may pass its hold on at the moment when the Locker is closed. The next caller must not
// get a lease whose context never ends. The scheduler decides whether this caller first notices the
// hold or the close, so the test repeats this often.
func TestAHoldThatIsPassedOnDuringCloseEnds(t *testing.T) {
	for range 100 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			w := startWaiting(t, l, locker.Rule{Key: "a", TTL: time.Second})
			closed := make(chan error, 1)
			release(t, lease) // at this moment, the next caller may not have noticed its turn yet
			go func() { closed <- l.Close(context.Background()) }()
			<-w.ended
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
			if w.err != nil {
				wantErr(t, w.err, "a", locker.ErrClosed)
			} else if err := context.Cause(w.lease.Context()); !errors.Is(err, locker.ErrClosed) {
				t.Fatalf("after Close the context ends with %v", err)
			}
			time.Sleep(time.Minute)
			nothingLeft(t, store)
		})
	}
}
