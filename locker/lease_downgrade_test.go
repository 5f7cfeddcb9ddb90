package locker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestADowngradeLetsReadersInAndNoWriter(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		lease := acquire(t, ls[0], writing)
		w, near, far := startWaiting(t, ls[1], writing), startWaiting(t, ls[0], reading), startWaiting(t, ls[2], reading)
		if err := lease.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*waiting{near, far} {
			if got := r.awaitGrant(0); got.Fence() != lease.Fence() {
				t.Fatalf("fence %d beside %d", got.Fence(), lease.Fence())
			}
		}
		if lease.Mode() != locker.Shared {
			t.Fatal("it is", lease.Mode())
		}
		calls := store.Calls(locker.OpDowngrade)
		if err := lease.Downgrade(t.Context()); err != nil || store.Calls(locker.OpDowngrade) != calls {
			t.Fatalf("a second downgrade: %v", err)
		}
		<-time.After(5 * time.Minute) // in this time, the lease is renewed as a reader's lease
		for _, l := range []*locker.Lease{lease, near.lease, far.lease} {
			w.checkWaiting()
			release(t, l)
		}
		if got := w.awaitGrant(0); got.Fence() <= lease.Fence() {
			t.Fatalf("fence %d after %d", got.Fence(), lease.Fence())
		}
	})
}

// When a lease is downgraded, the waiting writers of the same process go into the queue again,
// behind all other waiters.
func TestADowngradeEndsAStreak(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		lease := acquire(t, ls[0], writing)
		other := startWaiting(t, ls[1], writing)
		near := []*waiting{startWaiting(t, ls[0], writing), startWaiting(t, ls[0], writing)}
		if err := lease.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		near[0].checkWaiting()
		release(t, lease)
		release(t, other.awaitGrant(0))
		release(t, near[0].awaitGrant(0))
		release(t, near[1].awaitGrant(0))
	})
}

func TestADowngradeWithinAStreakHasItsOwnFence(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], writing)
		near := startWaiting(t, ls[0], writing)
		release(t, first)
		second := near.awaitGrant(0)
		if second.Fence() != first.Fence()+1 {
			t.Fatal("positive control: it was not passed on")
		}
		if err := second.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := acquire(t, ls[1], reading); r.Fence() != second.Fence() {
			t.Fatalf("a reader has fence %d beside %d", r.Fence(), second.Fence())
		}
		<-time.After(time.Minute)
		if err := context.Cause(second.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestADowngradeWhoseAnswerIsLost(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		lease := acquire(t, ls[0], writing)
		store.LoseReplies(locker.OpDowngrade, 1)
		if err := lease.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := store.Calls(locker.OpDowngrade); n != 2 {
			t.Fatalf("%d calls, want 2", n)
		}
		release(t, acquire(t, ls[1], reading))
		release(t, lease)
		release(t, acquire(t, ls[1], writing))
	})
}

// When the caller does not know whether the server has executed the downgrade, the lease is still
// renewed and released as before.
func TestADowngradeThatStaysUnclear(t *testing.T) {
	for name, happens := range map[string]bool{"happened": true, "did not happen": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				ls, _ := processes(t, store, 2)
				lease := acquire(t, ls[0], writing)
				near := startWaiting(t, ls[0], writing)
				if happens {
					store.DelayReplies(locker.OpDowngrade, time.Minute)
				} else {
					store.Fail(locker.OpDowngrade, errors.New("EOF"))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wantErr(t, lease.Downgrade(ctx), "a", context.DeadlineExceeded)
				if lease.Mode() != locker.Shared {
					t.Fatal("a caller that believes in an Exclusive lease may be wrong")
				}
				<-time.After(5 * time.Minute)
				if err := context.Cause(lease.Context()); err != nil {
					t.Fatal(err)
				}
				// Its own caller never waits for it, whatever has happened.
				again, cancelAgain := context.WithTimeout(lease.Context(), time.Minute)
				began := time.Now()
				inner, err := ls[0].Acquire(again, locker.Rule{Key: "a", Mode: locker.Shared})
				if cancelAgain(); time.Since(began) > time.Second {
					t.Errorf("the caller has waited %v for itself: %v", time.Since(began), err)
				}
				if err == nil {
					release(t, inner)
				}
				r := startWaiting(t, ls[1], patient(reading, time.Second))
				<-r.ended
				if (r.err == nil) != happens {
					t.Fatalf("a reader: %v", r.err)
				}
				release(t, lease)
				if r.err == nil {
					near.checkWaiting()
					release(t, r.lease)
				}
				release(t, near.awaitGrant(0))
			})
		})
	}
}

func TestADowngradeOfWhatIsLost(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		var rec lockertest.Recorder
		l := lockertest.NewLocker(t, backend, locker.WithObserver(&rec))
		lease := acquire(t, l, writing)
		backend.Steal("a")
		wantErr(t, lease.Downgrade(t.Context()), "a", locker.ErrLost)
		lost(t, lease, locker.ErrLost)
		backend.Free("a")
		lease = acquire(t, l, writing)
		release(t, lease)
		wantErr(t, lease.Downgrade(t.Context()), "a", locker.ErrReleased)
		lease = acquire(t, l, writing)
		backend.Fail(locker.OpDowngrade, &store.Refusal{Err: errors.New("NOPERM")})
		wantErr(t, lease.Downgrade(t.Context()), "a", locker.ErrUnavailable)
		if lease.Mode() != locker.Exclusive {
			t.Fatal("nothing was done, and it is", lease.Mode())
		}
		release(t, lease)
	})
}

func TestAReleaseDuringADowngrade(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		for _, slow := range []func(locker.Op, time.Duration){store.Delay, store.DelayReplies} {
			lease := acquire(t, ls[0], writing)
			slow(locker.OpDowngrade, time.Second)
			done := make(chan error)
			go func() { done <- lease.Downgrade(t.Context()) }()
			synctest.Wait()
			release(t, lease)
			wantErr(t, <-done, "a", locker.ErrReleased)
			start := time.Now()
			w := acquire(t, ls[1], writing)
			checkElapsed(t, start, 0, 0)
			<-time.After(2 * time.Second)
			if err := context.Cause(w.Context()); err != nil {
				t.Fatal(err)
			}
			release(t, w)
			slow(locker.OpDowngrade, 0)
		}
	})
}

func TestWhoHasDowngradedMayReadAgainAndNotWrite(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		err := locker.Run(t.Context(), ls[0], writing, func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			if err := lease.Downgrade(ctx); err != nil {
				return err
			}
			w := startWaiting(t, ls[1], writing)
			if err := locker.Run(ctx, ls[0], reading, func(context.Context) error { return nil }); err != nil {
				t.Error("reading:", err)
			}
			w.checkWaiting()
			return locker.Run(ctx, ls[0], writing, func(context.Context) error { return nil })
		})
		wantErr(t, err, "a", locker.ErrUnsupported)
	})
}
