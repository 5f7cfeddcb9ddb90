package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// reentrant runs a test with a reentrant Locker on a new Engine.
func reentrant(t *testing.T, test func(t *testing.T, store *lockertest.Memory, l locker.Locker, e *locker.Engine)) {
	t.Helper()
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		e := lockertest.NewLocker(t, store)
		test(t, store, locktest.Reentrant(t, e), e)
		if store.Len() != 0 || store.Queued() != 0 {
			t.Errorf("%d keys are held, %d are in a queue", store.Len(), store.Queued())
		}
	})
}

// acquireInside acquires rule with the context of the lease outer, and returns the lease.
func acquireInside(t *testing.T, l locker.Locker, outer *locker.Lease, rule locker.Rule) *locker.Lease {
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
				second := acquireInside(t, l, first, locker.Rule{Key: "a"})
				holds := []*locker.Lease{first, second, acquireInside(t, l, second, locker.Rule{Key: "a"})}
				stranger := startWaiting(t, e, locker.Rule{Key: "a"})
				for n, i := range order {
					<-time.After(10 * time.Second) // meanwhile the lease is renewed
					stranger.checkWaiting()
					release(t, holds[i])
					release(t, holds[i]) // releases the hold a second time
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
				release(t, stranger.awaitGrant(0))
			})
		})
	}
}

func TestStrangersWait(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		other := locktest.Reentrant(t, e)
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
			// The acquire must fail, because otherwise it would wait for its own caller.
			if _, err := try(); !errors.Is(err, locker.ErrUnsupported) {
				t.Errorf("%s: %v", who, err)
			}
		}
		b := acquireInside(t, l, lease, locker.Rule{Key: "b"}) // another key is another lock, so this acquire succeeds
		release(t, lease)
		checkHeld(t, b)
		release(t, b)
	})
}

// A hold that was released gives no rights. A caller that has kept the context of the hold waits
// like any other caller, even if the key has a new holder.
func TestAReleasedHoldLetsNobodyIn(t *testing.T) {
	reentrant(t, func(t *testing.T, _ *lockertest.Memory, l locker.Locker, e *locker.Engine) {
		outer := acquire(t, l, locker.Rule{Key: "a"})
		inner := acquireInside(t, l, outer, locker.Rule{Key: "a"})
		kept := context.WithoutCancel(inner.Context())
		ended := inner.Context()
		release(t, inner)

		again, err := l.Acquire(kept, locker.Rule{Key: "a", Wait: locker.NoWait}) // the context kept also has the outer hold
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
							meet <- struct{}{} // now both goroutines hold the lock
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

		// If a nested hold is released only after Run has returned, the lock is kept until then.
		out, end := make(chan struct{}), make(chan struct{})
		_ = locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			lease, err := l.Acquire(ctx, locker.Rule{Key: "a"})
			if err != nil {
				return err
			}
			go func() {
				defer close(end)
				<-out
				checkHeld(t, lease)
				release(t, lease)
			}()
			return nil
		})
		stranger := startWaiting(t, e, locker.Rule{Key: "a"})
		<-time.After(time.Hour)
		stranger.checkWaiting()
		close(out)
		<-end
		release(t, stranger.awaitGrant(0))
	})
}

func TestRunAllJoinsWhatIsHeld(t *testing.T) {
	for name, wrap := range map[string]func(testing.TB, *locker.Engine) locker.Locker{"a Reentrant": wraps["a Reentrant"], "both": wraps["both"]} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := wrap(t, lockertest.NewLocker(t, store))
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
					if n := store.Calls(locker.OpAcquire) - before; name == "a Reentrant" && n != 2 {
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
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		recorder := new(lockertest.Recorder)
		l := locktest.Reentrant(t, lockertest.NewLocker(t, store, locker.WithObserver(recorder)))
		if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(ctx context.Context) error {
			return locker.Run(ctx, l, locker.Rule{Key: "a"}, nothing)
		}); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, r := range recorder.Records() {
			all = append(all, fmt.Sprintf("%v:%v:%d", r.Op, r.Outcome.Result, r.Outcome.Calls))
		}
		want := "acquire:acquired:1 acquire:nested:0 hold:released:0 release:released:0 hold:released:0 release:released:1"
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		for _, op := range []locker.Op{locker.OpAcquire, locker.OpHold, locker.OpRelease} {
			if n := recorder.Begun(op); n != len(recorder.Records(op)) {
				t.Errorf("%d of %v began, %d ended", n, op, len(recorder.Records(op)))
			}
		}
	})
}
