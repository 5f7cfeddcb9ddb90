package locker_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The anchor ties the server's clock to the process's clock. These tests show when the anchor must
// not be used any more.

// A subscription is lost and then opened again. Meanwhile the key is free, and the server has
// dropped the waiter, because the waiter's process did not listen. The waiter notices this only
// when it asks. A waiter that is not the head asks only every 10 s.
func TestWhoHearsAgainAsksAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second, third := startWaiting(t, ls[1], locker.Rule{Key: "a"}), startWaiting(t, ls[2], locker.Rule{Key: "a"})
		<-time.After(3 * time.Second) // the waiter asked after 1 s, and will ask again 7 s from now
		ps[2].Disturb(lockertest.EventFaults{Deaf: true})
		release(t, first)
		release(t, second.awaitGrant(0))
		third.checkWaiting()
		if store.Len() != 0 || store.Queued() != 0 {
			t.Fatal("positive control: the server believes in the waiter")
		}
		ps[2].Disturb(lockertest.EventFaults{})
		release(t, third.awaitGrant(0))
		nothingLeft(t, store)
	})
}

// The server restarts with another clock, so the process must not use the anchor of the old
// clock. This is also true if the call that would make a new anchor fails. Then an acquire must
// check each grant that comes by message, because otherwise this process would end the lease
// too late.
func TestWhoHearsAgainForgetsTheServersClock(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		store.Fail(locker.OpAcquire, errors.New("reset"))
		ps[1].Disturb(lockertest.EventFaults{Deaf: true})
		store.StepClock(60 * time.Millisecond)
		ps[1].Disturb(lockertest.EventFaults{})
		synctest.Wait()
		ps[1].Disturb(lockertest.EventFaults{Delay: 80 * time.Millisecond}) // by the old clock, the grant seems 20 ms old
		release(t, first)
		<-time.After(81 * time.Millisecond)
		store.Fail(locker.OpAcquire, nil)
		lease := second.awaitGrant(200 * time.Millisecond)
		i, err := ls[0].Inspect(t.Context(), "a")
		if err != nil || i.Fence != lease.Fence() {
			t.Fatalf("%+v %v", i, err)
		}
		if here := time.Until(lease.Expires()); here > i.Left {
			t.Errorf("the lease has %v left here, and %v on the server", here, i.Left)
		}
		release(t, lease)
	})
}

// The anchor ties the server's clock to the process's clock. Here it comes from a slow answer, and
// the message of the grant arrives late, but the grant is still fresh enough to use. If the anchor
// counted from the arrival of the answer, the grant would seem younger than it is, and the lease
// would end too late in this process.
func TestALateGrantCountsFromBeforeASlowAnswer(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		store.DelayReplies(locker.OpAcquire, 80*time.Millisecond)
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		<-time.After(200 * time.Millisecond)
		ps[1].Disturb(lockertest.EventFaults{Delay: 90 * time.Millisecond})
		release(t, first)
		calls := store.Calls(locker.OpAcquire)
		lease := second.awaitGrant(90 * time.Millisecond)
		if n := store.Calls(locker.OpAcquire) - calls; n != 0 {
			t.Errorf("positive control: the server was asked %d times", n)
		}
		i, err := ls[0].Inspect(t.Context(), "a")
		if err != nil || i.Fence != lease.Fence() {
			t.Fatalf("%+v %v", i, err)
		}
		if here := time.Until(lease.Expires()); here > i.Left {
			t.Errorf("the lease has %v left here, and %v on the server", here, i.Left)
		}
		release(t, lease)
	})
}
