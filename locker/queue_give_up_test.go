package locker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestAGrantThatMeetsACancelGoesToTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		third := startWaiting(t, ls[2], locker.Rule{Key: "a"})
		ps[1].Disturb(lockertest.EventFaults{Delay: 20 * time.Millisecond})
		release(t, first)
		second.cancel() // the waiter gives up while the grant is on its way
		<-second.ended
		wantErr(t, second.err, "a", context.Canceled, locker.ErrBusy)
		release(t, third.awaitGrant(0))
		<-time.After(time.Second)
		nothingLeft(t, store)
	})
}

func TestDeathsAndPausesCostTheOthersLittle(t *testing.T) {
	t.Run("a waiter that was killed costs nothing", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, ps := processes(t, store, 3)
			first := acquire(t, ls[0], locker.Rule{Key: "a"})
			second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
			third := startWaiting(t, ls[2], locker.Rule{Key: "a"})
			ps[1].Die()
			release(t, first)
			release(t, third.awaitGrant(0))
			second.cancel()
		})
	})
	t.Run("a waiter that is stopped costs its claim", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, ps := processes(t, store, 3)
			first := acquire(t, ls[0], locker.Rule{Key: "a"})
			second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
			third := startWaiting(t, ls[2], locker.Rule{Key: "a"})
			<-time.After(600 * time.Millisecond) // long enough that the third waiter is notified when the second gets the key
			ps[1].Pause()
			release(t, first)
			lease := third.awaitGrant(2100 * time.Millisecond)
			ps[1].Resume()
			second.checkWaiting()
			release(t, lease)
			release(t, second.awaitGrant(10*time.Second))
		})
	})
	t.Run("a holder that died costs its TTL and a millisecond", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, ps := processes(t, store, 2)
			first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: 5 * time.Second})
			second := startWaiting(t, ls[1], locker.Rule{Key: "a"})
			<-time.After(1500 * time.Millisecond)
			synctest.Wait()
			ps[0].Die()
			i, err := ls[1].Inspect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			release(t, second.awaitGrant(i.Left+2*time.Millisecond))
			_ = first.Release(t.Context())
		})
	})
}

// The queue keeps a waiter for much longer than a lease lasts. So the release of a waiter that
// gives up late must still remove it from the queue.
func TestAWaiterThatGivesUpLateLeavesTheQueue(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		head := startWaiting(t, ls[1], locker.Rule{Key: "a"})
		second := startWaiting(t, ls[2], locker.Rule{Key: "a", TTL: time.Second})
		<-time.After(8 * time.Second) // by then, the second waiter's last request was 7 s ago
		if n := store.Queued(); n != 2 {
			t.Errorf("%d entries for two waiters", n)
		}
		second.cancel()
		<-second.ended
		synctest.Wait()
		if n := store.Queued(); n != 1 {
			t.Errorf("%d entries for one waiter", n)
		}
		release(t, lease)
		release(t, head.awaitGrant(0))
		nothingLeft(t, store)
	})
}
