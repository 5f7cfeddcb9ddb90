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

// In each case a message is late, early, lost or repeated. Nevertheless each caller gets the key at
// its next re-check at the latest, and no two processes hold the key at the same time.
func TestMessagesAreOnlyHints(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(m *lockertest.Memory, p *lockertest.Process)
		limit time.Duration
		asks  int // the expected number of acquires after the release; -1: any number
	}{
		"late": {func(_ *lockertest.Memory, p *lockertest.Process) {
			p.Disturb(lockertest.EventFaults{Delay: 150 * time.Millisecond})
		}, 150 * time.Millisecond, 1},
		"later than claim": {func(_ *lockertest.Memory, p *lockertest.Process) {
			p.Disturb(lockertest.EventFaults{Delay: 3 * time.Second})
		}, 2 * time.Second, -1},
		"lost":     {func(_ *lockertest.Memory, p *lockertest.Process) { p.Disturb(lockertest.EventFaults{Lose: 1}) }, 1300 * time.Millisecond, -1},
		"repeated": {func(_ *lockertest.Memory, p *lockertest.Process) { p.Disturb(lockertest.EventFaults{Repeat: true}) }, 0, 0},
		"before the reply": {func(m *lockertest.Memory, _ *lockertest.Process) {
			m.DelayReplies(locker.OpAcquire, 50*time.Millisecond)
		}, 100 * time.Millisecond, -1},
		"deaf":         {func(_ *lockertest.Memory, p *lockertest.Process) { p.Disturb(lockertest.EventFaults{Deaf: true}) }, 1300 * time.Millisecond, -1},
		"clock ahead":  {func(m *lockertest.Memory, _ *lockertest.Process) { m.StepClock(time.Second) }, 0, 1},
		"clock behind": {func(m *lockertest.Memory, _ *lockertest.Process) { m.StepClock(-time.Second) }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				ls, ps := processes(t, store, 2)
				first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: time.Minute})
				second := startWaiting(t, ls[1], locker.Rule{Key: "a", TTL: time.Minute})
				c.spoil(store, ps[1])
				calls := store.Calls(locker.OpAcquire)
				release(t, first)
				lease := second.awaitGrant(c.limit)
				if n := store.Calls(locker.OpAcquire) - calls; c.asks >= 0 && n != c.asks {
					t.Errorf("%d acquires after the release, want %d", n, c.asks)
				}
				if i, err := ls[0].Inspect(t.Context(), "a"); err != nil || i.Fence != lease.Fence() {
					t.Fatalf("the server shows %+v %v, the lease has fence %d", i, err, lease.Fence())
				}
				<-time.After(10 * time.Second) // long enough for all calls under way to arrive
				if lease.Context().Err() != nil {
					t.Fatal(context.Cause(lease.Context()))
				}
				release(t, lease)
				store.DelayReplies(locker.OpAcquire, 0)
				<-time.After(10 * time.Second)
				nothingLeft(t, store)
			})
		})
	}
}

// The age of a grant is measured by the server's clock. The rates of the server's clock and the
// process's clock may differ by 1 %.
func TestAGrantCountsFromNoLaterThanItHappened(t *testing.T) {
	for name, c := range map[string]struct {
		slip time.Duration
		asks int
	}{
		"equal clocks":        {0, 0},
		"server fast by 0.8%": {72 * time.Millisecond, 0},
		"server slow by 0.8%": {-72 * time.Millisecond, 0},
		"server fast by 2%":   {180 * time.Millisecond, 1}, // then the age is uncertain, so the server is asked
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				ls, _ := processes(t, store, 3)
				first := acquire(t, ls[0], locker.Rule{Key: "a"})
				second, third := startWaiting(t, ls[1], locker.Rule{Key: "a"}), startWaiting(t, ls[2], locker.Rule{Key: "a"})
				// After this pause, all waiters have asked once more. The waiters behind the head
				// will then ask again only after 10 s.
				<-time.After(1500 * time.Millisecond)
				synctest.Wait()
				<-time.After(9 * time.Second)
				second.cancel()
				<-second.ended
				synctest.Wait()
				store.StepClock(c.slip)
				calls := store.Calls(locker.OpAcquire)
				granted := time.Now()
				release(t, first)
				lease := third.awaitGrant(0)
				if n := store.Calls(locker.OpAcquire) - calls; n != c.asks {
					t.Errorf("%d acquires after the release, want %d", n, c.asks)
				}
				if latest := granted.Add(2*time.Second - 22*time.Millisecond); c.asks == 0 && lease.Expires().After(latest) {
					t.Errorf("the lease ends %v later than the server may give it away", lease.Expires().Sub(latest))
				}
				release(t, lease)
			})
		})
	}
}

// Here the answer to a re-check arrives before the message of the same grant.
func TestAMessageThatCrossesARecheckIsIgnored(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		ps[1].Disturb(lockertest.EventFaults{Delay: 5 * time.Second})
		release(t, first)
		lease := second.awaitGrant(2 * time.Second) // the waiter's re-check has found the grant
		<-time.After(6 * time.Second)               // now the message arrives
		third := startWaiting(t, ls[0], locker.Rule{Key: "a"})
		third.checkWaiting()
		if lease.Context().Err() != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		release(t, lease)
		release(t, third.awaitGrant(0))
	})
}

// The process repeats the release of the cancelled waiter for a limited time, and in all this time
// the release is lost, too. Then the process answers the message with another release. Otherwise
// the other waiters would wait until the unused lease expires.
func TestAGrantToAnUnknownTokenIsReleased(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		third := startWaiting(t, ls[2], locker.Rule{Key: "a"})
		store.Fail(locker.OpRelease, errors.New("down"))
		second.cancel()
		<-second.ended
		<-time.After(2 * time.Minute)
		store.Fail(locker.OpRelease, nil)
		if store.Queued() != 2 {
			t.Fatalf("positive control: %d entries, want also the entry of the waiter that gave up", store.Queued())
		}
		release(t, first)
		release(t, third.awaitGrant(0))
		nothingLeft(t, store)
	})
}

// The server reports that no process listens at the inbox of a waiter. Then the waiter's process
// subscribes again, and the waiter is notified of its turn as before.
func TestWhoIsDeafSubscribesAgain(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		ps[1].Disturb(lockertest.EventFaults{Deaf: true})
		<-time.After(2500 * time.Millisecond) // in this time, the waiter has asked twice
		calls := store.Calls(locker.OpAcquire)
		release(t, first)
		lease := second.awaitGrant(0)
		if n := store.Calls(locker.OpAcquire) - calls; n != 0 {
			t.Errorf("the waiter asked %d times: it got no event", n)
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

// The answer to an acquire comes so late that the lease is already over in this process. On the
// server the lease still lasts, because the server counts the TTL from a later time.
func TestAGrantThatCameTooLateIsGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Delay(locker.OpAcquire, 995*time.Millisecond) // a lease of 1 s lasts for 988 ms in this process
		done := make(chan *locker.Lease, 1)
		go func() { done <- acquire(t, l, locker.Rule{Key: "a", TTL: time.Second}) }()
		<-time.After(900 * time.Millisecond)
		store.Delay(locker.OpAcquire, 0)
		<-time.After(95 * time.Millisecond)
		start := time.Now()
		lease := <-done
		if left := time.Until(lease.Expires()); left < 900*time.Millisecond {
			t.Errorf("the lease ends in %v", left)
		}
		release(t, lease)
		checkElapsed(t, start, 0, 200*time.Millisecond)
	})
}

// If an acquire still hangs when its wait ends, the waiter does not know whether the key is busy
// now.
func TestARecheckThatHangsIsNotBusy(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		_ = acquire(t, ls[0], locker.Rule{Key: "a"})
		w := startWaiting(t, ls[1], locker.Rule{Key: "a", Wait: 8 * time.Second})
		store.Delay(locker.OpAcquire, time.Minute)
		<-w.ended
		store.Delay(locker.OpAcquire, 0)
		wantErr(t, w.err, "a", locker.ErrUnavailable)
		wantNot(t, w.err, locker.ErrBusy)
		checkElapsed(t, w.began, 8*time.Second, 0)
	})
}

// An event for a token must not affect the next token of the same caller. The test needs a timer
// and a message at the same moment, so it runs in real time, and several times.
func TestNewsOfAnOldTokenIsNoNews(t *testing.T) {
	t.Parallel()
	for range 12 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			store := lockertest.NewMemory()
			var ls []*locker.Engine
			for range 3 {
				ls = append(ls, lockertest.NewLocker(t, store.NewProcess(), locker.WithFair(), locker.WithBackoff(locker.Exponential(time.Nanosecond, time.Nanosecond))))
			}
			first := acquire(t, ls[0], locker.Rule{Key: "a"})
			start := time.Now()
			at := func(ms int) { <-time.After(time.Until(start.Add(time.Duration(ms) * time.Millisecond))) }
			brief := asks(t, ls[1], locker.Rule{Key: "a", TTL: 50 * time.Millisecond, EndAfter: 50 * time.Millisecond})
			at(10)
			long := asks(t, ls[2], locker.Rule{Key: "a", TTL: 10 * time.Second})
			at(950)
			// The first waiter's re-check is sent at 1000 ms, and the server runs it at 1040 ms.
			store.Delay(locker.OpAcquire, 40*time.Millisecond)
			// The answer to the re-check comes at 1060 ms, when the lease that it grants is
			// already over.
			store.DelayReplies(locker.OpAcquire, 20*time.Millisecond)
			at(1033)
			release(t, first) // the first waiter gets the message of its grant while its re-check is under way
			at(1050)
			store.Delay(locker.OpAcquire, 0)
			store.DelayReplies(locker.OpAcquire, 0)
			held := long.Granted(2 * time.Second) // succeeds, because grants that came too late were given back
			<-time.After(40 * time.Millisecond)
			if brief.Over() && brief.Err == nil && brief.Lease.Fence() < held.Fence() && brief.Lease.Expires().After(long.At) {
				t.Errorf("fence %d counts %v into the lease with fence %d", brief.Lease.Fence(), brief.Lease.Expires().Sub(long.At), held.Fence())
			}
			release(t, held)
		})
	}
}
