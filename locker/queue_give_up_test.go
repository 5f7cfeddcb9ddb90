package locker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

func TestAWaiterThatGivesUpLeavesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		for range 20 {
			w := startWaiting(t, ls[1], locker.Rule{Key: "a", Wait: 100 * time.Millisecond})
			<-w.ended
			wantErr(t, w.err, "a", locker.ErrBusy)
		}
		synctest.Wait()
		if store.Queued() != 0 {
			t.Errorf("%d entries are left", store.Queued())
		}
		release(t, first)
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

func TestAServerThatRestartsEmptyLosesNoWaiter(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: 3 * time.Second})
		second, third := startWaiting(t, ls[1], locker.Rule{Key: "a"}), startWaiting(t, ls[2], locker.Rule{Key: "a"})
		store.Wipe()
		var got *locker.Lease
		select { // either waiter may ask first, and get the key
		case <-second.ended:
			got, second = second.lease, third
		case <-third.ended:
			got = third.lease
		}
		lost(t, first, locker.ErrLost)
		release(t, got)
		release(t, second.awaitGrant(0))
		if got.Fence() <= first.Fence() {
			t.Errorf("fence %d after %d", got.Fence(), first.Fence())
		}
	})
}

// Ten Engines use many keys on connections that have all kinds of faults. All callers get their
// leases, and nothing is left behind.
func TestNobodyIsStuck(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 5)
		stop := make(chan struct{})
		var faults sync.WaitGroup
		faults.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(37 * time.Millisecond):
				}
				p := ps[i%len(ps)]
				switch i % 7 {
				case 0:
					p.Disturb(lockertest.EventFaults{Deaf: true})
				case 1:
					p.Disturb(lockertest.EventFaults{Lose: 3, Delay: 50 * time.Millisecond})
				case 2:
					p.Disturb(lockertest.EventFaults{Delay: time.Duration(i%300) * time.Millisecond})
				case 3:
					p.Disturb(lockertest.EventFaults{Repeat: i%2 == 0})
				case 4:
					store.LoseReplies(locker.OpAcquire, 2)
				case 5:
					store.LoseReplies(locker.OpRelease, 2)
				case 6:
					p.Disturb(lockertest.EventFaults{})
				}
			}
		})
		var wg sync.WaitGroup
		var inside [3]atomic.Int32
		for i := range 60 {
			wg.Go(func() {
				for n := range 20 {
					key := (i + n) % 3
					rule := locker.Rule{Key: fmt.Sprint("k", key), TTL: 20 * time.Second}
					ctx, cancel := context.WithCancel(t.Context())
					if n%5 == 4 {
						ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
					}
					lease, err := ls[i%len(ls)].Acquire(ctx, rule)
					cancel()
					if err != nil {
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("worker %d: %v", i, err)
						}
						continue
					}
					if n := inside[key].Add(1); n != 1 {
						t.Errorf("%d hold %s", n, rule.Key)
					}
					<-time.After(time.Duration(i%4) * time.Millisecond)
					inside[key].Add(-1)
					if err := lease.Release(t.Context()); err != nil {
						t.Errorf("worker %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		close(stop)
		faults.Wait()
		<-time.After(2 * time.Minute)
		nothingLeft(t, store)
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
