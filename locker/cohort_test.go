package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The callers of one process that share a lease.

// crowd starts n waiters for a key, in order.
func crowd(t *testing.T, l locker.Locker, rule locker.Rule, n int) (ws []*waiting) {
	t.Helper()
	for range n {
		ws = append(ws, waits(t, l, rule))
	}
	return ws
}

func calls(store *lockertest.Memory) int {
	return store.Calls(locker.OpAcquire) + store.Calls(locker.OpRelease) + store.Calls(locker.OpRenew)
}

func TestALeaseIsPassedOnWithoutACall(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 100)
		before := calls(store)
		fences := map[uint64]bool{lease.Fence(): true}
		last := lease.Fence()
		for _, w := range ws {
			release(t, lease)
			lease = w.granted(0)
			if lease.Fence() <= last || fences[lease.Fence()] {
				t.Fatalf("fence %d after %d", lease.Fence(), last)
			}
			last = lease.Fence()
			fences[last] = true
			if i, err := l.Inspect(t.Context(), "a"); err != nil || last < i.Fence || last >= i.Fence+locker.DefaultHandoffs {
				t.Fatalf("fence %d lies outside of the block that begins at %d, %v", last, i.Fence, err)
			}
		}
		if n := calls(store) - before; n != 1 { // a release with the next acquire for every 64
			t.Errorf("%d calls for 100 leases", n)
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

func TestAStreakEnds(t *testing.T) {
	t.Run("after so many leases, and others come between", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, _ := processes(t, store, 2, locker.WithHandoffs(3))
			lease := acquire(t, ls[0], locker.Rule{Key: "a"})
			ours, theirs := crowd(t, ls[0], locker.Rule{Key: "a"}, 4), crowd(t, ls[1], locker.Rule{Key: "a"}, 4)
			for i, w := range []*waiting{ours[0], ours[1], theirs[0], theirs[1], theirs[2], ours[2], ours[3], theirs[3]} {
				release(t, lease)
				select {
				case <-w.done:
				case <-time.After(time.Millisecond):
					t.Fatalf("number %d was not served in its turn", i)
				}
				lease = w.granted(0)
			}
			release(t, lease)
			nothingLeft(t, store)
		})
	})
	t.Run("after ten milliseconds", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, _ := processes(t, store, 2)
			lease := acquire(t, ls[0], locker.Rule{Key: "a"})
			ours, theirs := crowd(t, ls[0], locker.Rule{Key: "a"}, 2), waits(t, ls[1], locker.Rule{Key: "a"})
			release(t, lease)
			lease = ours[0].granted(0)
			<-time.After(11 * time.Millisecond)
			release(t, lease)
			release(t, theirs.granted(0))
			release(t, ours[1].granted(0))
		})
	})
	t.Run("when too little of the lease is left", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Minute})
			next := waits(t, l, locker.Rule{Key: "a", TTL: time.Minute})
			if err := lease.Extend(t.Context(), time.Second); err != nil { // to less
				t.Fatal(err)
			}
			before := calls(store)
			release(t, lease)
			lease = next.granted(0)
			if calls(store) == before || time.Until(lease.Expires()) < 50*time.Second {
				t.Errorf("%v left: a lease that is nearly over was passed on", time.Until(lease.Expires()))
			}
			release(t, lease)
		})
	})
	t.Run("when its lease is lost, and no fence comes twice", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			lease := acquire(t, l, locker.Rule{Key: "a"})
			ws := crowd(t, l, locker.Rule{Key: "a"}, 3)
			release(t, lease)
			lease = ws[0].granted(0)
			store.Steal("a")
			thief, err := l.Inspect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			lost(t, lease, locker.ErrLost)
			ws[1].waitsStill()
			store.Free("a")
			next := ws[1].granted(2 * time.Second)
			if next.Fence() <= thief.Fence {
				t.Errorf("fence %d after the thief's %d", next.Fence(), thief.Fence)
			}
			if err := lease.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
				t.Errorf("release of the lost lease: %v", err)
			}
			if next.Context().Err() != nil {
				t.Error("the release of the lost lease has ended the next one")
			}
			release(t, next)
			release(t, ws[2].granted(0))
			nothingLeft(t, store)
		})
	})
}

func TestOnlyEqualTermsShare(t *testing.T) {
	for name, rule := range map[string]locker.Rule{
		"TTL":     {Key: "a", TTL: time.Minute},
		"AtLeast": {Key: "a", AtLeast: time.Millisecond},
		"AtMost":  {Key: "a", AtMost: time.Hour},
		"Once":    {Key: "a", Once: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store)
				lease := acquire(t, l, locker.Rule{Key: "a"})
				w := waits(t, l, rule)
				before := store.Calls(locker.OpRelease)
				release(t, lease)
				if store.Calls(locker.OpRelease) == before {
					t.Error("the lease was passed on to other terms")
				}
				release(t, w.granted(0))
				<-time.After(time.Second)
				nothingLeft(t, store)
			})
		})
	}
}

func TestLocalWaitersMayGiveUp(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithMetadata(func(context.Context) string { return "me" }))
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 20 * time.Second})
		ws := crowd(t, l, locker.Rule{Key: "a", TTL: 20 * time.Second}, 3)
		timed := waits(t, l, locker.Rule{Key: "a", TTL: 20 * time.Second, Wait: time.Second})
		ws[1].cancel()
		<-ws[1].done
		wantErr(t, ws[1].err, "a", context.Canceled, locker.ErrBusy)
		<-timed.done
		e := wantErr(t, timed.err, "a", locker.ErrBusy)
		if e.RetryAfter <= 0 || e.RetryAfter > 20*time.Second {
			t.Errorf("retry after %v", e.RetryAfter)
		}
		release(t, lease)
		release(t, ws[0].granted(0))
		release(t, ws[2].granted(0))
		nothingLeft(t, store)
	})
}

// The turn and the end of the wait come together: the turn is passed on.
func TestATurnThatMeetsACancelIsPassedOn(t *testing.T) {
	for range 200 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store, locker.WithHandoffs(4))
			lease := acquire(t, l, locker.Rule{Key: "a"})
			ws := crowd(t, l, locker.Rule{Key: "a"}, 12)
			last := waits(t, l, locker.Rule{Key: "a"})
			var wg sync.WaitGroup
			for _, w := range ws {
				wg.Go(w.cancel)
			}
			release(t, lease)
			wg.Wait()
			for _, w := range ws {
				if <-w.done; w.err == nil {
					release(t, w.lease)
				}
			}
			release(t, last.granted(5*time.Second))
			nothingLeft(t, store)
		})
	}
}

func TestALeaderThatGivesUpHandsTheLeadOn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		ws := crowd(t, ls[1], locker.Rule{Key: "a"}, 3)
		ws[0].cancel()
		<-ws[0].done
		wantErr(t, ws[0].err, "a", context.Canceled, locker.ErrBusy)
		synctest.Wait()
		release(t, lease)
		release(t, ws[1].granted(0))
		release(t, ws[2].granted(0))
		nothingLeft(t, store)
	})
}

func TestAnOutageEndsAllWaitsOfACohortInTime(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Delay(locker.OpAcquire, 5*time.Second)
		store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		start := time.Now()
		ws := crowd(t, l, locker.Rule{Key: "a"}, 50)
		for _, w := range ws {
			<-w.done
			wantErr(t, w.err, "a", locker.ErrUnavailable)
			wantNot(t, w.err, locker.ErrBusy)
		}
		since(t, start, 0, 12*time.Second)
		store.Delay(locker.OpAcquire, 0)
		store.Fail(locker.OpAcquire, nil)
		<-time.After(time.Minute)
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
	})
}

// The release that ends a streak is not answered: its leader asks by itself, and the key is not lost.
func TestAFollowerWhoseReleaseIsUnclear(t *testing.T) {
	for name, spoil := range map[string]func(m *lockertest.Memory){
		"answer lost":   func(m *lockertest.Memory) { m.LoseReplies(locker.OpRelease, 1) },
		"never arrived": func(m *lockertest.Memory) { m.Fail(locker.OpRelease, errors.New("reset")) },
		"answer late":   func(m *lockertest.Memory) { m.DelayReplies(locker.OpRelease, time.Second) },
		"arrives late":  func(m *lockertest.Memory) { m.Delay(locker.OpRelease, time.Second) },
		"key stolen":    func(m *lockertest.Memory) { m.Steal("a") },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store, locker.WithHandoffs(2))
				lease := acquire(t, l, locker.Rule{Key: "a"})
				ws := crowd(t, l, locker.Rule{Key: "a"}, 4)
				release(t, lease)
				lease = ws[0].granted(0)
				spoil(store)
				done := make(chan error, 1)
				go func() { done <- lease.Release(t.Context()) }()
				<-time.After(1500 * time.Millisecond)
				store.Fail(locker.OpRelease, nil)
				store.Delay(locker.OpRelease, 0)
				store.DelayReplies(locker.OpRelease, 0)
				if name == "key stolen" {
					store.Free("a")
				}
				last := lease.Fence()
				for _, w := range ws[1:] {
					next := w.granted(5 * time.Second)
					if next.Fence() <= last {
						t.Errorf("fence %d after %d", next.Fence(), last)
					}
					last = next.Fence()
					release(t, next)
				}
				if err := <-done; err != nil && name != "key stolen" {
					t.Error(err)
				}
				<-time.After(5 * time.Minute)
				nothingLeft(t, store)
			})
		})
	}
}

// While an answer of the last of them is late, the next leader gives up.
func TestAFollowerThatGivesUpIsUndone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithHandoffs(2))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 3)
		release(t, lease)
		lease = ws[0].granted(0)
		store.DelayReplies(locker.OpRelease, time.Second)
		go func() { _ = lease.Release(t.Context()) }()
		synctest.Wait()
		ws[1].cancel() // the server has granted it the key
		<-ws[1].done
		wantErr(t, ws[1].err, "a", context.Canceled)
		store.DelayReplies(locker.OpRelease, 0)
		release(t, ws[2].granted(time.Second))
		<-time.After(time.Minute)
		nothingLeft(t, store)
	})
}

func TestCloseEndsTheWaitersOfACohort(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 10)
		go func() { _ = l.Close(t.Context()) }()
		for _, w := range ws {
			<-w.done
			wantErr(t, w.err, "a", locker.ErrClosed)
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

func TestAStreaksLeasesEndApart(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		rec := new(lockertest.Recorder)
		l := lockertest.NewLocker(t, store, locker.WithObserver(rec))
		first := acquire(t, l, locker.Rule{Key: "a"})
		next := waits(t, l, locker.Rule{Key: "a", Name: "other"})
		ctx := first.Context()
		release(t, first)
		second := next.granted(0)
		if !errors.Is(context.Cause(ctx), locker.ErrReleased) || second.Context().Err() != nil {
			t.Errorf("first: %v, second: %v", context.Cause(ctx), context.Cause(second.Context()))
		}
		if err := first.Extend(t.Context(), time.Hour); !errors.Is(err, locker.ErrReleased) {
			t.Errorf("extend of a released lease: %v", err)
		}
		release(t, first) // again: nothing happens
		if second.Context().Err() != nil || store.Len() != 1 {
			t.Error("the second release of the first lease ended the next one")
		}
		<-time.After(time.Hour)
		if second.Context().Err() != nil {
			t.Error("a lease that was passed on is not renewed")
		}
		if i, err := l.Inspect(t.Context(), "a"); err != nil || !strings.Contains(second.String(), "a") || i.Fence+1 != second.Fence() {
			t.Errorf("%+v %v, fence %d", i, err, second.Fence())
		}
		if err := l.Revoke(t.Context(), "a", second.Fence(), "drill"); err != nil {
			t.Fatalf("break by the fence of a lease that was passed on: %v", err)
		}
		lost(t, second, locker.ErrRevoked)
	})
}

// The time that a caller has waited in its process is no part of the time that its first question takes.
func TestALongWaitInTheProcessIsNoLateAnswer(t *testing.T) {
	t.Run("after a hold was lost", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store)
			_ = acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			w := waits(t, l, locker.Rule{Key: "a", TTL: time.Second})
			<-time.After(3 * time.Second)
			before := store.Calls(locker.OpAcquire)
			store.Wipe() // the holder finds out at its next renewal
			lease := w.granted(400 * time.Millisecond)
			if n := store.Calls(locker.OpAcquire) - before; n != 1 {
				t.Errorf("%d acquires for a free key", n)
			}
			if left := time.Until(lease.Expires()); left < 980*time.Millisecond {
				t.Errorf("%v left of a lease of 1 s that was just granted", left)
			}
			release(t, lease)
			nothingLeft(t, store)
		})
	})
	t.Run("after a streak, where nobody tells of grants", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			store.FailOpen(errors.New("NOPERM"))
			l := lockertest.NewLocker(t, store, locker.WithHandoffs(2))
			lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
			ws := crowd(t, l, locker.Rule{Key: "a", TTL: time.Second}, 2)
			<-time.After(3 * time.Second)
			before := store.Calls(locker.OpAcquire)
			for _, w := range ws {
				release(t, lease)
				lease = w.granted(0)
				if left := time.Until(lease.Expires()); left < 500*time.Millisecond {
					t.Errorf("%v left of a lease of 1 s", left)
				}
			}
			if n := store.Calls(locker.OpAcquire) - before; n > 1 {
				t.Errorf("%d acquires for a free key", n)
			}
			release(t, lease)
			nothingLeft(t, store)
		})
	})
}

// A caller that has waited must not be overtaken because another one of its process gives up.
func TestALeaderThatGivesUpLeavesItsPlaceToTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		ours := crowd(t, ls[1], locker.Rule{Key: "a"}, 3)
		theirs := waits(t, ls[2], locker.Rule{Key: "a"})
		for _, w := range ours[:2] {
			w.cancel()
			<-w.done
			wantErr(t, w.err, "a", context.Canceled, locker.ErrBusy)
			synctest.Wait()
			if n := store.Queued(); n != 2 {
				t.Errorf("%d entries of two processes", n)
			}
		}
		before := store.Calls(locker.OpAcquire)
		release(t, lease)
		lease = ours[2].granted(0)
		theirs.waitsStill()
		if n := store.Calls(locker.OpAcquire) - before; n != 0 {
			t.Errorf("%d acquires after the release", n)
		}
		release(t, lease)
		release(t, theirs.granted(0))
		nothingLeft(t, store)
	})
}

// The leader hears that the server cannot be asked, and so must those who wait behind it.
//
// All their waits end together, so who is behind may come to lead first: a matter of scheduling, so it is tried often.
func TestAFollowersErrorIsThatOfItsLeader(t *testing.T) {
	for range 20 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, _ := processes(t, store, 2)
			_ = acquire(t, ls[0], locker.Rule{Key: "a"})
			ws := crowd(t, ls[1], locker.Rule{Key: "a", Wait: 8 * time.Second}, 5)
			store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
			for _, w := range ws {
				<-w.done
				wantErr(t, w.err, "a", locker.ErrUnavailable)
				wantNot(t, w.err, locker.ErrBusy)
			}
		})
	}
}

func TestWhoIsOneTooManyHearsWhenToRetry(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2, locker.WithMaxWaiters(2))
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		for _, l := range ls { // one where the holder is, one where only the leader has heard of it
			ws := crowd(t, l, locker.Rule{Key: "a"}, 2)
			_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			if e := wantErr(t, err, "a", locker.ErrTooManyWaiters); e.RetryAfter < time.Millisecond || e.RetryAfter > time.Second {
				t.Errorf("retry after %v, while the holder has just begun", e.RetryAfter)
			}
			for _, w := range ws {
				w.cancel()
				<-w.done
			}
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

// While the leader waits for its first answer it may not have to wait at all, and others are counted before it.
func TestWhoComesLastIsRefusedWhenTheLeaderMustWaitAsWell(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithMaxWaiters(2))
		store.Occupy("a", time.Minute)
		store.DelayReplies(locker.OpAcquire, 50*time.Millisecond)
		var ws []*waiting
		for range 3 {
			ws = append(ws, waits(t, l, locker.Rule{Key: "a"}))
			<-time.After(time.Millisecond)
		}
		store.DelayReplies(locker.OpAcquire, 0)
		<-ws[2].done
		if e := wantErr(t, ws[2].err, "a", locker.ErrTooManyWaiters); e.RetryAfter < time.Millisecond || e.RetryAfter > time.Second {
			t.Errorf("retry after %v, while nothing is known of the holder", e.RetryAfter)
		}
		if waited := ws[2].at.Sub(ws[2].since); waited > 50*time.Millisecond {
			t.Errorf("refused after %v; the leader was answered earlier", waited)
		}
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
		wantErr(t, err, "a", locker.ErrTooManyWaiters)
		store.Free("a")
		for _, w := range ws[:2] {
			<-w.done
			release(t, w.lease)
		}
		ws = crowd(t, l, locker.Rule{Key: "a"}, 3) // one has it: all are counted out
		release(t, ws[0].lease)
		for _, w := range ws[1:] {
			<-w.done
			release(t, w.lease)
		}
		nothingLeft(t, store)
	})
}

// If the next one's process died, the key would be blocked for what the one before has asked for.
func TestAnExtendedHoldIsNotPassedOn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		w := waits(t, l, locker.Rule{Key: "a", TTL: time.Second})
		if err := lease.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		release(t, lease)
		next := w.granted(0)
		if i, err := l.Inspect(t.Context(), "a"); err != nil || i.Left > time.Second || i.Fence != next.Fence() {
			t.Errorf("a lease of 1 s with fence %d: %+v %v", next.Fence(), i, err)
		}
		before := store.Calls(locker.OpRenew)
		<-time.After(50 * time.Minute)
		if n := store.Calls(locker.OpRenew) - before; n > 50*60*4 {
			t.Errorf("%d renewals in 50 min", n)
		}
		release(t, next)
		nothingLeft(t, store)
	})
}

func TestAReleasedLeaseDoesNotLastAsLongAsTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
		w := waits(t, l, locker.Rule{Key: "a", TTL: time.Second})
		released := time.Now()
		release(t, lease)
		next := w.granted(0)
		<-time.After(time.Minute)
		if at := lease.Expires(); at.After(released) {
			t.Errorf("it expires %v after its release", at.Sub(released))
		}
		if left := time.Until(next.Expires()); left < 500*time.Millisecond {
			t.Errorf("%v left of the next one", left)
		}
		release(t, next)
	})
}

// onHold is an Observer that does something when a hold begins.
type onHold func()

func (f onHold) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	if op == locker.OpHold {
		f()
	}
	return ctx, nil
}

// The panic is its caller's. It must not take the key from everybody else.
func TestAPanicOfAnObserverLeavesTheKeyToOthers(t *testing.T) {
	for name, holds := range map[string]int{"of who asks the server": 1, "of who was passed the hold": 2} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				begun := 0
				l := lockertest.NewLocker(t, store, locker.WithObserver(onHold(func() {
					if begun++; begun == holds {
						panic("observer")
					}
				})))
				recovered := make(chan any, 1)
				panics := func() {
					defer func() { recovered <- recover() }()
					_, _ = l.Acquire(t.Context(), locker.Rule{Key: "a", TTL: time.Second})
				}
				if holds == 1 {
					panics()
				} else {
					first := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
					go panics()
					synctest.Wait()
					release(t, first)
				}
				if <-recovered == nil {
					t.Error("positive control: nothing panicked")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				lease, err := l.Acquire(ctx, locker.Rule{Key: "a", TTL: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				release(t, lease)
				<-time.After(time.Minute)
				nothingLeft(t, store)
			})
		})
	}
}

// A hold may be over before its cohort was told of it; who hears of both must not believe in it for ever. It is a matter of
// scheduling, so it is tried often.
func TestAHoldThatIsLostAtOnceLeavesTheKeyToOthers(t *testing.T) {
	for range 20 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			const ttl = time.Second
			l := lockertest.NewLocker(t, store, locker.WithObserver(onHold(func() { <-time.After(ttl) })))
			var wg sync.WaitGroup
			for i := range 50 { // all at once, so that they are in each other's way
				wg.Go(func() {
					rule := locker.Rule{Key: fmt.Sprint("a", i), TTL: ttl}
					lease := acquire(t, l, rule)
					<-lease.Context().Done()
					_ = lease.Release(t.Context())
					<-time.After(time.Minute)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					if _, err := l.Acquire(ctx, rule); ctx.Err() != nil {
						t.Errorf("nobody holds the key, and it was not to be had for an hour: %v", err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// What was seen of one key says nothing about the next one.
func TestAKeyOfWhichNothingWasHeardIsNotWaitedFor(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a"})
		next := waits(t, l, locker.Rule{Key: "a"})
		release(t, lease)
		release(t, next.granted(0))
		store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		start := time.Now()
		leader := waits(t, l, locker.Rule{Key: "b", Wait: 20 * time.Second})
		<-time.After(900 * time.Millisecond)
		follower := waits(t, l, locker.Rule{Key: "b", Wait: 20 * time.Second})
		for _, w := range []*waiting{leader, follower} {
			<-w.done
			wantErr(t, w.err, "b", locker.ErrUnavailable)
		}
		since(t, start, time.Second, 2*time.Second)
	})
}
