package locker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestLocalWaitersMayGiveUp(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithMetadata(func(context.Context) string { return "me" }))
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 20 * time.Second})
		ws := crowd(t, l, locker.Rule{Key: "a", TTL: 20 * time.Second}, 3)
		timed := startWaiting(t, l, locker.Rule{Key: "a", TTL: 20 * time.Second, Wait: time.Second})
		ws[1].cancel()
		<-ws[1].ended
		wantErr(t, ws[1].err, "a", context.Canceled, locker.ErrBusy)
		<-timed.ended
		e := wantErr(t, timed.err, "a", locker.ErrBusy)
		if e.RetryAfter <= 0 || e.RetryAfter > 20*time.Second {
			t.Errorf("retry after %v", e.RetryAfter)
		}
		release(t, lease)
		release(t, ws[0].awaitGrant(0))
		release(t, ws[2].awaitGrant(0))
		nothingLeft(t, store)
	})
}

// If a caller gets its turn at the moment when its wait ends, it passes the turn on.
func TestATurnThatMeetsACancelIsPassedOn(t *testing.T) {
	for range 200 {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			l := lockertest.NewLocker(t, store, locker.WithHandoffs(4))
			lease := acquire(t, l, locker.Rule{Key: "a"})
			ws := crowd(t, l, locker.Rule{Key: "a"}, 12)
			last := startWaiting(t, l, locker.Rule{Key: "a"})
			var wg sync.WaitGroup
			for _, w := range ws {
				wg.Go(w.cancel)
			}
			release(t, lease)
			wg.Wait()
			for _, w := range ws {
				if <-w.ended; w.err == nil {
					release(t, w.lease)
				}
			}
			release(t, last.awaitGrant(5*time.Second))
			nothingLeft(t, store)
		})
	}
}

// The leader of a process knows when its place is to be asked for again. If callers come and give up
// steadily, each leader leaves before that time, and the question must not be put off by every next one:
// nobody would find out that the holder has died.
func TestSteadyCallersWhoGiveUpFindTheKeyThatADeadHolderLeaves(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond} {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, ps := processes(t, store, 2)
			rule := locker.Rule{Key: "a", TTL: 10 * time.Second, Wait: 5 * time.Second}
			acquire(t, ls[0], rule)
			began := time.Now()
			ps[0].Pause() // it renews no more
			var callers sync.WaitGroup
			var first time.Duration
			for time.Since(began) < 40*time.Second {
				callers.Go(func() {
					lease, err := ls[1].Acquire(t.Context(), rule)
					if err != nil {
						return
					}
					if first == 0 {
						first = time.Since(began)
					}
					release(t, lease)
				})
				<-time.After(every)
			}
			callers.Wait()
			if first == 0 || first > 11500*time.Millisecond {
				t.Errorf("with a caller each %v, the first grant came after %v, and the lease was over after 10 s", every, first)
			}
			ps[0].Resume()
		})
	}
}

// The head of the queue is told when the key will be free. It gives up, and the next leader of its
// process asks at that time.
func TestALeaderThatGivesUpLeavesTheTimeOfTheNextQuestion(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		lease := acquire(t, ls[0], locker.Rule{Key: "a", TTL: 20 * time.Second, KeepFor: 9 * time.Second})
		leader, next := startWaiting(t, ls[1], locker.Rule{Key: "a"}), startWaiting(t, ls[1], locker.Rule{Key: "a"})
		<-time.After(8 * time.Second)
		release(t, lease)
		<-time.After(200 * time.Millisecond)
		leader.cancel()
		<-leader.ended
		release(t, next.awaitGrant(850*time.Millisecond))
		nothingLeft(t, store)
	})
}

func TestALeaderThatGivesUpHandsTheLeadOn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		ws := crowd(t, ls[1], locker.Rule{Key: "a"}, 3)
		ws[0].cancel()
		<-ws[0].ended
		wantErr(t, ws[0].err, "a", context.Canceled, locker.ErrBusy)
		synctest.Wait()
		release(t, lease)
		release(t, ws[1].awaitGrant(0))
		release(t, ws[2].awaitGrant(0))
		nothingLeft(t, store)
	})
}

// When one caller of a process gives up, the other callers that wait in this process keep their
// place.
func TestALeaderThatGivesUpLeavesItsPlaceToTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		ours := crowd(t, ls[1], locker.Rule{Key: "a"}, 3)
		theirs := startWaiting(t, ls[2], locker.Rule{Key: "a"})
		for _, w := range ours[:2] {
			w.cancel()
			<-w.ended
			wantErr(t, w.err, "a", context.Canceled, locker.ErrBusy)
			synctest.Wait()
			if n := store.Queued(); n != 2 {
				t.Errorf("%d entries of two processes", n)
			}
		}
		before := store.Calls(locker.OpAcquire)
		release(t, lease)
		lease = ours[2].awaitGrant(0)
		theirs.checkWaiting()
		if n := store.Calls(locker.OpAcquire) - before; n != 0 {
			t.Errorf("%d acquires after the release", n)
		}
		release(t, lease)
		release(t, theirs.awaitGrant(0))
		nothingLeft(t, store)
	})
}

// The next leader inherits a place in the queue that asks for another TTL than its own, and
// believes no more than the server.
func TestAnInheritedPlaceKeepsItsTTL(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		holder := lockertest.NewLocker(t, store, locker.WithoutRenewal())
		ls, ps := processes(t, store, 1, locker.WithAdaptiveTTL(time.Second, 30*time.Second))
		l := ls[0]
		ps[0].Disturb(lockertest.EventFaults{Lose: 1}) // so the lease is granted in a reply, and not by a message
		acquire(t, holder, locker.Rule{Key: "a", TTL: 5 * time.Second})
		first := startWaiting(t, l, locker.Rule{Key: "a"})
		synctest.Wait()
		other := acquire(t, l, locker.Rule{Key: "b"})
		store.DelayReplies(locker.OpRenew, 400*time.Millisecond) // the TTL of the Locker grows
		<-time.After(2 * time.Second)
		store.DelayReplies(locker.OpRenew, 0)
		next := startWaiting(t, l, locker.Rule{Key: "a"})
		synctest.Wait()
		first.cancel()
		<-first.ended
		lease := next.awaitGrant(10 * time.Second) // the holder's lease has expired
		info, err := l.Inspect(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(lease.Expires()); left > info.Left {
			t.Errorf("the lease ends in %v, and on the server in %v", left, info.Left)
		}
		release(t, lease)
		release(t, other)
	})
}

// The first waiter gives up while it waits for the late answer to the release that ends a streak.
// The waiter behind it leads then.
func TestAWaiterThatGivesUpDuringTheReleaseHoldsUpNobody(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithHandoffs(2))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		ws := crowd(t, l, locker.Rule{Key: "a"}, 3)
		release(t, lease)
		lease = ws[0].awaitGrant(0)
		store.DelayReplies(locker.OpRelease, time.Second)
		go func() { _ = lease.Release(t.Context()) }()
		synctest.Wait()
		ws[1].cancel() // this caller would lead after the release
		<-ws[1].ended
		wantErr(t, ws[1].err, "a", context.Canceled)
		store.DelayReplies(locker.OpRelease, 0)
		release(t, ws[2].awaitGrant(time.Second))
		<-time.After(time.Minute)
		nothingLeft(t, store)
	})
}

// The release that ends a streak has no clear answer. The next caller leads all the same, and the
// key does not stay locked.
func TestTheNextLeaderAfterAnUnclearRelease(t *testing.T) {
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
				lease = ws[0].awaitGrant(0)
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
					next := w.awaitGrant(5 * time.Second)
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

func TestAnOutageEndsAllWaitsOfACohortInTime(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Delay(locker.OpAcquire, 5*time.Second)
		store.Fail(locker.OpAcquire, errors.New("i/o timeout"))
		start := time.Now()
		ws := crowd(t, l, locker.Rule{Key: "a"}, 50)
		for _, w := range ws {
			<-w.ended
			wantErr(t, w.err, "a", locker.ErrUnavailable)
			wantNot(t, w.err, locker.ErrBusy)
		}
		checkElapsed(t, start, 0, 12*time.Second)
		store.Delay(locker.OpAcquire, 0)
		store.Fail(locker.OpAcquire, nil)
		<-time.After(time.Minute)
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
	})
}

// The answer to the leader's acquire was lost, and an operator revoked the lease that it had taken.
// Only the leader learns of it: the next caller of the cohort asks with a token of its own.
func TestARevokedTokenIsNotHandedOn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 1, locker.WithBackoff(locker.Exponential(200*time.Millisecond, 200*time.Millisecond)))
		l := ls[0]
		store.LoseReplies(locker.OpAcquire, 1)
		ws := crowd(t, l, locker.Rule{Key: "a"}, 3)
		i, err := l.Inspect(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Revoke(t.Context(), "a", i.Fence, "drill"); err != nil {
			t.Fatal(err)
		}
		<-ws[0].ended
		if !errors.Is(ws[0].err, locker.ErrRevoked) {
			t.Fatalf("positive control: the leader got %v", ws[0].err)
		}
		for _, w := range ws[1:] {
			release(t, w.awaitGrant(time.Minute))
		}
		nothingLeft(t, store)
	})
}

// The callers of one key come faster than they can be served, so each leader gives up while its
// question is under way. The next leader takes the answer, and the key is used all the time.
func TestAnOverloadedProcessIsServedAlthoughItsLeadersGiveUp(t *testing.T) {
	for name, wrap := range map[string]func(l locker.Locker) locker.Locker{
		"callers whose Wait is over": func(l locker.Locker) locker.Locker { return l },
		"callers who leave":          func(l locker.Locker) locker.Locker { return leaving{l} },
	} {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			store.DelayReplies(locker.OpAcquire, 20*time.Millisecond)
			l := wrap(lockertest.NewLocker(t, store))
			began := time.Now()
			var callers sync.WaitGroup
			served := make([]int, 6)
			for time.Since(began) < 6*time.Second {
				callers.Go(func() {
					lease, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
					if err != nil {
						return
					}
					if second := int(time.Since(began) / time.Second); second < len(served) {
						served[second]++
					}
					<-time.After(10 * time.Millisecond)
					release(t, lease)
				})
				<-time.After(5 * time.Millisecond)
			}
			callers.Wait()
			for second, n := range served[1:] {
				if n < 10 {
					t.Errorf("%s: %d callers were served in second %d: %v", name, n, second+1, served)
				}
			}
		})
	}
}

// leaving is a Locker whose callers leave by their contexts.
type leaving struct{ locker.Locker }

func (l leaving) Acquire(ctx context.Context, rule locker.Rule) (*locker.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, rule.Wait)
	defer cancel()
	rule.Wait = 0
	return l.Locker.Acquire(ctx, rule)
}

// The leader's context ends while its question is under way. This ends neither the question nor the
// wait of the next leader, who takes the answer.
func TestTheEndOfALeadersContextIsNotThatOfItsQuestion(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Delay(locker.OpAcquire, 100*time.Millisecond)
		leader, next := startWaiting(t, l, locker.Rule{Key: "a"}), startWaiting(t, l, locker.Rule{Key: "a"})
		leader.cancel()
		<-leader.ended
		wantErr(t, leader.err, "a", context.Canceled)
		lease := next.awaitGrant(100 * time.Millisecond)
		if n := store.Calls(locker.OpAcquire); n != 1 {
			t.Errorf("%d calls, want one", n)
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}
