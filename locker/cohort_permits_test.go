package locker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These are tests of callers of one process that share a semaphore.

// gates is an Observer that stops callers. A nil gate stops no caller.
type gates struct {
	begin chan struct{} // stops the next caller whose hold begins
	wait  chan struct{} // stops all callers that begin to wait
}

func (g *gates) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	if op == locker.OpHold && g.begin != nil {
		gate := g.begin
		g.begin = nil
		<-gate
	}
	return ctx, nil
}

func (g *gates) Waiting(context.Context, locker.Rule, locker.WaitEvent) (over func()) {
	if g.wait != nil {
		<-g.wait
	}
	return nil
}

func TestAPermitGoesToTheCallerBehindTheLeader(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		rule := locker.Rule{Key: "a", Limit: 1}
		lease := acquire(t, l, rule)
		leader, next := startWaiting(t, l, rule), startWaiting(t, l, rule)
		<-time.After(5 * time.Millisecond) // now the server would give a larger fence than the block has
		release(t, lease)
		passed := next.awaitGrant(0)
		if passed.Fence() != lease.Fence()+1 {
			t.Errorf("fence %d after %d: the permit came from the server", passed.Fence(), lease.Fence())
		}
		leader.checkWaiting()
		release(t, passed)
		release(t, leader.awaitGrant(0))
		nothingLeft(t, store)
	})
}

func TestAPermitThatIsNearlyOverGoesBackToTheServer(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		rule := locker.Rule{Key: "a", TTL: 18 * time.Millisecond, Limit: 1}
		store.Delay(locker.OpRenew, time.Second)
		lease := acquire(t, l, rule)
		leader, next := startWaiting(t, l, rule), startWaiting(t, l, rule)
		<-time.After(8 * time.Millisecond)
		release(t, lease)
		got := leader.awaitGrant(0)
		next.checkWaiting()
		release(t, got)
		release(t, next.awaitGrant(0))
		nothingLeft(t, store)
	})
}

// The server grants a permit to the leader by message, and at the same moment another caller
// releases its permit.
func TestAPermitThatCrossesAGrantGoesToTheNextCaller(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		g := &gates{}
		ls, _ := processes(t, store, 2, locker.WithObserver(g))
		rule := locker.Rule{Key: "a", Limit: 2}
		ours, theirs := acquire(t, ls[0], rule), acquire(t, ls[1], rule)
		leader, next := startWaiting(t, ls[0], rule), startWaiting(t, ls[0], rule)
		gate := make(chan struct{})
		g.begin = gate
		release(t, theirs)
		synctest.Wait()
		if g.begin != nil {
			t.Fatal("the leader's lease has not begun")
		}
		release(t, ours)
		leader.checkWaiting()
		close(gate)
		lease := leader.awaitGrant(0)
		if lease.Fence() == ours.Fence()+1 {
			t.Error("the leader has thrown its grant away")
		}
		release(t, lease)
		release(t, next.awaitGrant(0))
		<-time.After(time.Minute)
		nothingLeft(t, store)
	})
}

// endsLate is a context whose Err blocks until the gate opens, so that a caller notices its end
// late.
type endsLate struct {
	context.Context
	gate chan struct{} // nil: open
}

func (c *endsLate) Err() error {
	if c.gate != nil {
		<-c.gate
	}
	return c.Context.Err()
}

// The leader gives up, and at the same moment another caller releases its permit.
func TestAPermitIsPassedOnWhileTheLeaderGivesUp(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		rule := locker.Rule{Key: "a", Limit: 1}
		lease := acquire(t, l, rule)
		under, cancel := context.WithCancel(t.Context())
		ctx := &endsLate{Context: under}
		left := make(chan error, 1)
		go func() {
			_, err := l.Acquire(ctx, rule)
			left <- err
		}()
		synctest.Wait()
		next := startWaiting(t, l, rule)
		gate := make(chan struct{})
		ctx.gate = gate
		cancel()
		synctest.Wait()
		release(t, lease)
		passed := next.awaitGrant(0)
		close(gate)
		wantErr(t, <-left, "a", context.Canceled, locker.ErrBusy)
		release(t, passed)
		<-time.After(time.Minute)
		nothingLeft(t, store)
	})
}

// During Close, no caller can use a permit any more. So a release goes to the server, even if a
// caller that has not yet noticed Close waits for the permit.
func TestAnEngineThatClosesPassesNoPermitOn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		g := &gates{}
		l := lockertest.NewLocker(t, store, locker.WithObserver(g))
		rule := locker.Rule{Key: "a", Limit: 1}
		lease := acquire(t, l, rule)
		leader := startWaiting(t, l, rule)
		g.wait = make(chan struct{})
		late := crowd(t, l, rule, 2)
		closed := make(chan error, 1)
		go func() { closed <- l.Close(t.Context()) }()
		<-leader.ended
		synctest.Wait()
		before := store.Calls(locker.OpRelease)
		release(t, lease)
		if n := store.Calls(locker.OpRelease) - before; n != 1 {
			t.Errorf("%d releases were sent, want 1", n)
		}
		close(g.wait)
		for _, w := range append(late, leader) {
			<-w.ended
			wantErr(t, w.err, "a", locker.ErrClosed)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		nothingLeft(t, store)
	})
}
