package locker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These are tests of waiting at the server. Several processes share a server in memory. Each
// process has its own Engine and its own inbox.

// processes returns the Engines of n processes on one Memory. Each Engine has waited once, so that
// its inbox is open.
func processes(t *testing.T, store *lockertest.Memory, n int, opts ...locker.Option) (ls []*locker.Engine, ps []*lockertest.Process) {
	t.Helper()
	for range n {
		p := store.NewProcess()
		l := lockertest.NewLocker(t, p, opts...)
		store.Occupy("opens", time.Millisecond)
		release(t, acquire(t, l, locker.Rule{Key: "opens"}))
		ls, ps = append(ls, l), append(ps, p)
	}
	synctest.Wait()
	return ls, ps
}

// startWaiting starts an acquire of rule in the background, and returns it when it waits.
func startWaiting(t *testing.T, l locker.Locker, rule locker.Rule) *waiting {
	t.Helper()
	w := &waiting{t: t, began: time.Now(), ended: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	go func() {
		defer close(w.ended)
		w.lease, w.err = l.Acquire(w.ctx, rule)
		w.grantedAt = time.Now()
	}()
	synctest.Wait()
	return w
}

// waiting is an acquire in the background.
type waiting struct {
	t         *testing.T
	ctx       context.Context
	cancel    context.CancelFunc
	began     time.Time
	ended     chan struct{}
	lease     *locker.Lease
	err       error
	grantedAt time.Time
}

// awaitGrant waits for the lease, and returns it. The lease must come within d.
func (w *waiting) awaitGrant(d time.Duration) *locker.Lease {
	w.t.Helper()
	start := time.Now()
	select {
	case <-w.ended:
	case <-time.After(d + time.Hour): // a time-out, because holders renew for ever, so that the bubble does not notice a waiter that is stuck
		w.t.Fatalf("not granted, want it within %v", d)
	}
	if w.err != nil {
		w.t.Fatal(w.err)
	}
	if took := w.grantedAt.Sub(start); took > d {
		w.t.Fatalf("granted after %v, want within %v", took, d)
	}
	return w.lease
}

// checkWaiting fails the test if the acquire has ended.
func (w *waiting) checkWaiting() {
	w.t.Helper()
	synctest.Wait()
	select {
	case <-w.ended:
		w.t.Fatalf("it ended: %v %v", w.lease, w.err)
	default:
	}
}

func TestAGrantIsToldAndCostsNoCall(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		calls := store.Calls(locker.OpAcquire)
		<-time.After(300 * time.Millisecond)
		release(t, first)
		got := second.awaitGrant(0)
		if n := store.Calls(locker.OpAcquire) - calls; n != 0 {
			t.Errorf("%d more acquires were sent", n)
		}
		if got.Fence() <= first.Fence() {
			t.Errorf("fence %d after %d", got.Fence(), first.Fence())
		}
		release(t, got)
		if n := store.Calls(locker.OpRenew); n != 0 {
			t.Errorf("%d renewals for two short sections", n)
		}
		nothingLeft(t, store)
	})
}

func nothingLeft(t *testing.T, store *lockertest.Memory) {
	t.Helper()
	synctest.Wait()
	if store.Len() != 0 || store.Queued() != 0 {
		t.Errorf("%d leases and %d entries are left", store.Len(), store.Queued())
	}
}

func TestAHandedLeaseIsShortUntilItsFirstRenewal(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: time.Minute})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a", TTL: time.Minute})
		release(t, first)
		lease := second.awaitGrant(0)
		if left := time.Until(lease.Expires()); left > 2*time.Second {
			t.Errorf("%v left before the first renewal: a winner that dies would cost the others that much", left)
		}
		<-time.After(260 * time.Millisecond)
		synctest.Wait()
		if left := time.Until(lease.Expires()); left < 50*time.Second {
			t.Errorf("%v left after the first renewal", left)
		}
		<-time.After(time.Hour)
		if lease.Context().Err() != nil {
			t.Error(context.Cause(lease.Context()))
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

func TestALeaseThatIsNeverRenewedIsHandedOverWhole(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a", TTL: 10 * time.Second, EndAfter: 10 * time.Second})
		release(t, first)
		lease := second.awaitGrant(0)
		third := startWaiting(t, ls[0], locker.Rule{Key: "a"})
		fourth := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		start := time.Now()
		lost(t, lease, locker.ErrExpired)
		checkElapsed(t, start, 9*time.Second, time.Second)
		if n := store.Calls(locker.OpRenew); n != 1 {
			t.Errorf("%d renewals, want the confirmation only", n)
		}
		// The process has confirmed its hand-off before, so it counts as alive, and its other
		// waiter keeps its place.
		release(t, third.awaitGrant(2*time.Second))
		release(t, fourth.awaitGrant(0))
	})
}

// A waiter that has become the head asks often. The head does not rely on the end of the
// holder's lease.
func TestTheHeadGoesOnAsking(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a", TTL: time.Hour, EndAfter: time.Hour})
		third := startWaiting(t, ls[2], locker.Rule{Key: "a"})
		<-time.After(2 * time.Second)
		release(t, first) // the third waiter is notified that it is the head, and that the key is free in an hour at the latest
		lease := second.awaitGrant(0)
		synctest.Wait()
		ps[2].Disturb(lockertest.EventFaults{Lose: 1})
		release(t, lease)
		release(t, third.awaitGrant(1100*time.Millisecond))
	})
}

// A wait of hours costs few calls. If the message of its grant is lost then, the key is idle for
// at most half of the TTL. If another process waits, it gets the key within 3 s: the winner has lost
// its turn.
func TestAWaiterAsksLessAndLess(t *testing.T) {
	const ttl = 12 * time.Second
	for name, others := range map[string]int{"alone": 0, "with another process behind it": 1} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				ls, ps := processes(t, store, 2+others)
				first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: ttl})
				second := startWaiting(t, ls[1], locker.Rule{Key: "a", TTL: ttl})
				next, limit := second, ttl/2
				if others > 0 {
					next, limit = startWaiting(t, ls[2], locker.Rule{Key: "a", TTL: ttl}), 3*time.Second
				}
				asked := func(d time.Duration) int {
					before := store.Calls(locker.OpAcquire)
					<-time.After(d)
					return store.Calls(locker.OpAcquire) - before
				}
				if n := asked(8 * time.Second); n != 3+others { // the head after 1, 3 and 7 s
					t.Errorf("%d questions in the first 8 s", n)
				}
				if n := asked(time.Hour); n < 600+others*360 || n > 601+others*515 {
					t.Errorf("%d questions in an hour, want one in 6 s of the head, and in 7 to 10 s of the other waiter", n)
				}
				ps[1].Disturb(lockertest.EventFaults{Lose: 1})
				release(t, first)
				release(t, next.awaitGrant(limit))
				if others > 0 {
					release(t, second.awaitGrant(ttl/2))
				}
				nothingLeft(t, store)
			})
		})
	}
}

func TestAForeignHolderIsPolledByTheHeadAlone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 10)
		store.Occupy("a", 0)
		calls := store.Calls(locker.OpAcquire)
		var ws []*waiting
		for _, l := range ls {
			ws = append(ws, startWaiting(t, l, locker.Rule{Key: "a"}))
		}
		<-time.After(10 * time.Second)
		// The head asks every 75 ms. The nine other waiters ask only from time to time.
		if n := store.Calls(locker.OpAcquire) - calls; n > 300 {
			t.Errorf("%d calls in 10 s: more than the head asks", n)
		}
		store.Free("a")
		for _, w := range ws {
			release(t, w.awaitGrant(110*time.Millisecond))
		}
		nothingLeft(t, store)
	})
}

func TestWithoutQueueNobodyQueues(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2, locker.WithoutQueue(), locker.WithBackoff(locker.Exponential(10*time.Millisecond, 10*time.Millisecond)))
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second, third := startWaiting(t, ls[1], locker.Rule{Key: "a"}), startWaiting(t, ls[1], locker.Rule{Key: "a"})
		<-time.After(time.Second)
		if store.Queued() != 0 {
			t.Error("a caller is in the queue")
		}
		release(t, first)
		for range 2 {
			select {
			case <-second.ended:
				release(t, second.lease)
				second.ended = nil
			case <-third.ended:
				release(t, third.lease)
				third.ended = nil
			}
		}
	})
}

func TestWhoMayNotListenWaitsInTheQueueAllTheSame(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		p := store.NewProcess()
		p.Disturb(lockertest.EventFaults{Refusal: errors.New("NOPERM")})
		l := lockertest.NewLocker(t, p)
		other := lockertest.NewLocker(t, store.NewProcess())
		first := acquire(t, other, locker.Rule{Key: "a"})
		second := startWaiting(t, l, locker.Rule{Key: "a"})
		// The third caller has another TTL, so it waits at the server, and not in its process.
		third := startWaiting(t, other, locker.Rule{Key: "a", TTL: time.Second})
		release(t, first)
		lease := second.awaitGrant(110 * time.Millisecond)
		third.checkWaiting()
		<-time.After(time.Minute)
		if lease.Context().Err() != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		release(t, lease)
		release(t, third.awaitGrant(0))
	})
}

func TestWhoWaitsForWorkIsToldThatItIsDone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a", OnceFor: time.Hour})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a", OnceFor: time.Hour})
		third := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		before := store.Calls(locker.OpRelease)
		if err := first.Complete(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-second.ended
		wantErr(t, second.err, "a", locker.ErrDone)
		synctest.Wait()
		if n := store.Calls(locker.OpRelease) - before; n != 1 {
			t.Errorf("%d releases, want that of the work: the server has nothing of a token whose work is done", n)
		}
		release(t, third.awaitGrant(0))
		nothingLeft(t, store)
	})
}

func TestAKeptKeyGoesToTheHeadWhenItsTimeIsOver(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a", KeepFor: 300 * time.Millisecond})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		release(t, first)
		second.checkWaiting()
		lease := second.awaitGrant(302 * time.Millisecond)
		if waited := second.grantedAt.Sub(second.began); waited < 300*time.Millisecond {
			t.Fatalf("granted after %v", waited)
		}
		release(t, lease)
	})
}

func TestABrokenHoldersKeyGoesToTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		if err := ls[1].Revoke(t.Context(), "a", first.Fence(), "drill"); err != nil {
			t.Fatal(err)
		}
		release(t, second.awaitGrant(0))
		if err := first.Release(t.Context()); !errors.Is(err, locker.ErrRevoked) {
			t.Fatal(err)
		}
	})
}

// KeepFor keeps the key locked even if its holder dies just after the key was handed to it.
func TestAtLeastSurvivesACrashAfterAHandOver(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		w := startWaiting(t, ls[1], locker.Rule{Key: "a", KeepFor: time.Minute})
		release(t, lease)
		_ = w.awaitGrant(0)
		ps[1].Die()
		start := time.Now()
		next := acquire(t, ls[2], locker.Rule{Key: "a"})
		checkElapsed(t, start, time.Minute, 2*time.Second)
		release(t, next)
	})
}

// A process stands still while it gets the key, so the server passes the key on, and the process loses
// the places of all its waiters. When it continues, none of them sleeps beside a free key.
func TestWaitersWhosePlacesWereLostWithAHandOffAskAgain(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		own := locker.Rule{Key: "a", EndAfter: time.Minute} // own terms, so each waiter has its own place
		held := acquire(t, ls[2], locker.Rule{Key: "a"})
		first, second := startWaiting(t, ls[0], own), startWaiting(t, ls[0], own)
		behind := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		<-time.After(2 * time.Second) // then they ask seldom
		ps[0].Pause()
		release(t, held)
		stays := behind.awaitGrant(4 * time.Second)
		ps[0].Resume()
		<-time.After(500 * time.Millisecond)
		if n := store.Queued(); n != 2 {
			t.Errorf("%d waiters have a place again, want 2", n)
		}
		release(t, stays)
		release(t, first.awaitGrant(100*time.Millisecond))
		release(t, second.awaitGrant(100*time.Millisecond))
		nothingLeft(t, store)
	})
}
