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

// Waiting at the server, on a server in memory that several processes share, each with an Engine and an inbox of its own.

// processes are Engines of n processes on one Memory; all of them have waited once, so that their inboxes are open.
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

// waits starts an acquire in the background, and returns when it waits.
func waits(t *testing.T, l locker.Locker, rule locker.Rule) *waiting {
	t.Helper()
	w := &waiting{t: t, since: time.Now(), done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	go func() {
		defer close(w.done)
		w.lease, w.err = l.Acquire(w.ctx, rule)
		w.at = time.Now()
	}()
	synctest.Wait()
	return w
}

type waiting struct {
	t      *testing.T
	ctx    context.Context
	cancel context.CancelFunc
	since  time.Time
	done   chan struct{}
	lease  *locker.Lease
	err    error
	at     time.Time
}

// granted waits for the lease, which must come within d of now.
func (w *waiting) granted(d time.Duration) *locker.Lease {
	w.t.Helper()
	start := time.Now()
	select {
	case <-w.done:
	case <-time.After(d + time.Hour): // holders renew for ever, and so does not the bubble find out
		w.t.Fatalf("not granted, want it within %v", d)
	}
	if w.err != nil {
		w.t.Fatal(w.err)
	}
	if took := w.at.Sub(start); took > d {
		w.t.Fatalf("granted after %v, want within %v", took, d)
	}
	return w.lease
}

func (w *waiting) waitsStill() {
	w.t.Helper()
	synctest.Wait()
	select {
	case <-w.done:
		w.t.Fatalf("it ended: %v %v", w.lease, w.err)
	default:
	}
}

func TestAGrantIsToldAndCostsNoCall(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := waits(t, ls[1], locker.Rule{Key: "a"})
		calls := store.Calls(locker.OpAcquire)
		<-time.After(300 * time.Millisecond)
		release(t, first)
		got := second.granted(0)
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
		second := waits(t, ls[1], locker.Rule{Key: "a", TTL: time.Minute})
		release(t, first)
		lease := second.granted(0)
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
		second := waits(t, ls[1], locker.Rule{Key: "a", TTL: 10 * time.Second, AtMost: 10 * time.Second})
		release(t, first)
		lease := second.granted(0)
		third := waits(t, ls[0], locker.Rule{Key: "a"})
		fourth := waits(t, ls[1], locker.Rule{Key: "a"})
		start := time.Now()
		lost(t, lease, locker.ErrExpired)
		since(t, start, 9*time.Second, time.Second)
		// It was confirmed, so its process counts as alive, and its other waiter keeps its place.
		release(t, third.granted(2*time.Second))
		release(t, fourth.granted(0))
	})
}

func TestWaitersAreServedInOrder(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3, locker.WithFair())
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		var order []int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				lease := acquire(t, ls[i*7%3], locker.Rule{Key: "a"})
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				<-time.After(time.Duration(i%5) * 100 * time.Millisecond)
				release(t, lease)
			})
			synctest.Wait()
		}
		release(t, first)
		wg.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("waiter %d was served as number %d: %v", got, i, order)
			}
		}
		nothingLeft(t, store)
	})
}

// In each case a message is late, early, lost or repeated, and still nobody waits for longer than a re-check, and nobody
// holds what somebody else holds.
func TestMessagesAreOnlyHints(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(m *lockertest.Memory, p *lockertest.Process)
		within time.Duration
		asks   int // acquires after the release
	}{
		"late":             {func(_ *lockertest.Memory, p *lockertest.Process) { p.DelayEvents(150 * time.Millisecond) }, 150 * time.Millisecond, 1},
		"later than claim": {func(_ *lockertest.Memory, p *lockertest.Process) { p.DelayEvents(3 * time.Second) }, 2 * time.Second, -1},
		"lost":             {func(_ *lockertest.Memory, p *lockertest.Process) { p.LoseEvents(1) }, 1300 * time.Millisecond, -1},
		"repeated":         {func(_ *lockertest.Memory, p *lockertest.Process) { p.RepeatEvents(true) }, 0, 0},
		"before the reply": {func(m *lockertest.Memory, _ *lockertest.Process) {
			m.DelayReplies(locker.OpAcquire, 50*time.Millisecond)
		}, 100 * time.Millisecond, -1},
		"deaf":         {func(_ *lockertest.Memory, p *lockertest.Process) { p.Deafen(true) }, 1300 * time.Millisecond, -1},
		"clock ahead":  {func(m *lockertest.Memory, _ *lockertest.Process) { m.StepClock(time.Second) }, 0, 1},
		"clock behind": {func(m *lockertest.Memory, _ *lockertest.Process) { m.StepClock(-time.Second) }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				ls, ps := processes(t, store, 2)
				first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: time.Minute})
				second := waits(t, ls[1], locker.Rule{Key: "a", TTL: time.Minute})
				c.spoil(store, ps[1])
				calls := store.Calls(locker.OpAcquire)
				release(t, first)
				lease := second.granted(c.within)
				if n := store.Calls(locker.OpAcquire) - calls; c.asks >= 0 && n != c.asks {
					t.Errorf("%d acquires after the release, want %d", n, c.asks)
				}
				if i, err := ls[0].Inspect(t.Context(), "a"); err != nil || i.Fence != lease.Fence() {
					t.Fatalf("the server says %+v %v, the lease has fence %d", i, err, lease.Fence())
				}
				<-time.After(10 * time.Second) // whatever is still under way arrives
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

// A wait is measured on the server's clock, and its rate may differ from ours by 1 %.
func TestAGrantCountsFromNoLaterThanItHappened(t *testing.T) {
	for name, c := range map[string]struct {
		slip time.Duration
		asks int
	}{
		"equal clocks":        {0, 0},
		"server fast by 0.8%": {72 * time.Millisecond, 0},
		"server slow by 0.8%": {-72 * time.Millisecond, 0},
		"server fast by 2%":   {180 * time.Millisecond, 1}, // then nothing is certain, and it is asked
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				ls, _ := processes(t, store, 3)
				first := acquire(t, ls[0], locker.Rule{Key: "a"})
				second, third := waits(t, ls[1], locker.Rule{Key: "a"}), waits(t, ls[2], locker.Rule{Key: "a"})
				<-time.After(1500 * time.Millisecond) // all have asked again once; who is further back does so in 10 s
				synctest.Wait()
				<-time.After(9 * time.Second)
				second.cancel()
				<-second.done
				synctest.Wait()
				store.StepClock(c.slip)
				calls := store.Calls(locker.OpAcquire)
				granted := time.Now()
				release(t, first)
				lease := third.granted(0)
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

// The answer to a re-check overtakes the message of the same grant.
func TestAMessageThatCrossesARecheckIsIgnored(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := waits(t, ls[1], locker.Rule{Key: "a"})
		ps[1].DelayEvents(5 * time.Second)
		release(t, first)
		lease := second.granted(2 * time.Second) // by a re-check
		<-time.After(6 * time.Second)            // the message comes now
		third := waits(t, ls[0], locker.Rule{Key: "a"})
		third.waitsStill()
		if lease.Context().Err() != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		release(t, lease)
		release(t, third.granted(0))
	})
}

func TestAGrantThatMeetsACancelGoesToTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := waits(t, ls[1], locker.Rule{Key: "a"})
		third := waits(t, ls[2], locker.Rule{Key: "a"})
		ps[1].DelayEvents(20 * time.Millisecond)
		release(t, first)
		second.cancel() // the grant is on its way
		<-second.done
		wantErr(t, second.err, "a", context.Canceled, locker.ErrBusy)
		release(t, third.granted(0))
		<-time.After(time.Second)
		nothingLeft(t, store)
	})
}

// The cancel's release is lost as well, for longer than it is repeated. Then it is the message that is answered with a
// release; without that the others would wait until the lease runs out that nobody uses.
func TestAGrantToAnUnknownTokenIsReleased(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := waits(t, ls[1], locker.Rule{Key: "a"})
		third := waits(t, ls[2], locker.Rule{Key: "a"})
		store.Fail(locker.OpRelease, errors.New("down"))
		second.cancel()
		<-second.done
		<-time.After(2 * time.Minute)
		store.Fail(locker.OpRelease, nil)
		if store.Queued() != 2 {
			t.Fatalf("positive control: %d entries, want that of the one who gave up too", store.Queued())
		}
		release(t, first)
		release(t, third.granted(0))
		nothingLeft(t, store)
	})
}

// The server says that nobody listens for a waiter: it subscribes again, and is told of its turn as before.
func TestWhoIsDeafSubscribesAgain(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := waits(t, ls[1], locker.Rule{Key: "a"})
		ps[1].Deafen(true)
		<-time.After(2500 * time.Millisecond) // it asks every second
		calls := store.Calls(locker.OpAcquire)
		release(t, first)
		lease := second.granted(0)
		if n := store.Calls(locker.OpAcquire) - calls; n != 0 {
			t.Errorf("it asked %d times: nobody told it", n)
		}
		release(t, lease)
		nothingLeft(t, store)
	})
}

func TestAWaiterThatGivesUpLeavesNothing(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		for range 20 {
			w := waits(t, ls[1], locker.Rule{Key: "a", Wait: 100 * time.Millisecond})
			<-w.done
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
			second := waits(t, ls[1], locker.Rule{Key: "a"})
			third := waits(t, ls[2], locker.Rule{Key: "a"})
			ps[1].Die()
			release(t, first)
			release(t, third.granted(0))
			second.cancel()
		})
	})
	t.Run("a waiter that is stopped costs its claim", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, ps := processes(t, store, 3)
			first := acquire(t, ls[0], locker.Rule{Key: "a"})
			second := waits(t, ls[1], locker.Rule{Key: "a"})
			third := waits(t, ls[2], locker.Rule{Key: "a"})
			<-time.After(600 * time.Millisecond) // who has waited that long is told to watch the winner
			ps[1].Pause()
			release(t, first)
			lease := third.granted(2100 * time.Millisecond)
			ps[1].Resume()
			second.waitsStill()
			release(t, lease)
			release(t, second.granted(10*time.Second))
		})
	})
	t.Run("a holder that died costs its TTL and a millisecond", func(t *testing.T) {
		virtual(t, func(t *testing.T, store *lockertest.Memory) {
			ls, ps := processes(t, store, 2)
			first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: 5 * time.Second})
			second := waits(t, ls[1], locker.Rule{Key: "a"})
			<-time.After(1500 * time.Millisecond)
			synctest.Wait()
			ps[0].Die()
			i, err := ls[1].Inspect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			release(t, second.granted(i.Left+2*time.Millisecond))
			_ = first.Release(t.Context())
		})
	})
}

// Who is told that it is the head now, and to watch over who holds the key, does not wait for that one's time to end.
func TestTheHeadGoesOnAsking(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := waits(t, ls[1], locker.Rule{Key: "a", TTL: time.Hour, AtMost: time.Hour})
		third := waits(t, ls[2], locker.Rule{Key: "a"})
		<-time.After(2 * time.Second)
		release(t, first) // the third is told: in an hour
		lease := second.granted(0)
		synctest.Wait()
		ps[2].LoseEvents(1)
		release(t, lease)
		release(t, third.granted(1100*time.Millisecond))
	})
}

func TestAForeignHolderIsPolledByTheHeadAlone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 10)
		store.Occupy("a", 0)
		calls := store.Calls(locker.OpAcquire)
		var ws []*waiting
		for _, l := range ls {
			ws = append(ws, waits(t, l, locker.Rule{Key: "a"}))
		}
		<-time.After(10 * time.Second)
		if n := store.Calls(locker.OpAcquire) - calls; n > 300 { // one asks every 75 ms, nine now and then
			t.Errorf("%d calls in 10 s: more than the head asks", n)
		}
		store.Free("a")
		for _, w := range ws {
			release(t, w.granted(110*time.Millisecond))
		}
		nothingLeft(t, store)
	})
}

func TestWithoutQueueNobodyQueues(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2, locker.WithoutQueue(), locker.WithBackoff(locker.Constant(10*time.Millisecond)))
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second, third := waits(t, ls[1], locker.Rule{Key: "a"}), waits(t, ls[1], locker.Rule{Key: "a"})
		<-time.After(time.Second)
		if store.Queued() != 0 {
			t.Error("somebody queues")
		}
		release(t, first)
		for range 2 {
			select {
			case <-second.done:
				release(t, second.lease)
				second.done = nil
			case <-third.done:
				release(t, third.lease)
				third.done = nil
			}
		}
	})
}

func TestWhoMayNotListenWaitsInTheQueueAllTheSame(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		p := store.NewProcess()
		p.FailOpen(errors.New("NOPERM"))
		l := lockertest.NewLocker(t, p)
		other := lockertest.NewLocker(t, store.NewProcess())
		first := acquire(t, other, locker.Rule{Key: "a"})
		second := waits(t, l, locker.Rule{Key: "a"})
		third := waits(t, other, locker.Rule{Key: "a", TTL: time.Second}) // other terms: at the server
		release(t, first)
		lease := second.granted(110 * time.Millisecond)
		third.waitsStill()
		<-time.After(time.Minute)
		if lease.Context().Err() != nil {
			t.Fatal(context.Cause(lease.Context()))
		}
		release(t, lease)
		release(t, third.granted(0))
	})
}

func TestWhoWaitsForWorkIsToldThatItIsDone(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a", Once: time.Hour})
		second := waits(t, ls[1], locker.Rule{Key: "a", Once: time.Hour})
		third := waits(t, ls[1], locker.Rule{Key: "a"})
		if err := first.Complete(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-second.done
		wantErr(t, second.err, "a", locker.ErrDone)
		release(t, third.granted(0))
		nothingLeft(t, store)
	})
}

func TestAKeptKeyGoesToTheHeadWhenItsTimeIsOver(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a", AtLeast: 300 * time.Millisecond})
		second := waits(t, ls[1], locker.Rule{Key: "a"})
		release(t, first)
		second.waitsStill()
		lease := second.granted(302 * time.Millisecond)
		if waited := second.at.Sub(second.since); waited < 300*time.Millisecond {
			t.Fatalf("granted after %v", waited)
		}
		release(t, lease)
	})
}

func TestABrokenHoldersKeyGoesToTheNext(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], locker.Rule{Key: "a"})
		second := waits(t, ls[1], locker.Rule{Key: "a"})
		if err := ls[1].Revoke(t.Context(), "a", first.Fence(), "drill"); err != nil {
			t.Fatal(err)
		}
		release(t, second.granted(0))
		if err := first.Release(t.Context()); !errors.Is(err, locker.ErrRevoked) {
			t.Fatal(err)
		}
	})
}

func TestAServerThatRestartsEmptyLosesNoWaiter(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		first := acquire(t, ls[0], locker.Rule{Key: "a", TTL: 3 * time.Second})
		second, third := waits(t, ls[1], locker.Rule{Key: "a"}), waits(t, ls[2], locker.Rule{Key: "a"})
		store.Wipe()
		var got *locker.Lease
		select { // whoever asks first
		case <-second.done:
			got, second = second.lease, third
		case <-third.done:
			got = third.lease
		}
		lost(t, first, locker.ErrLost)
		release(t, got)
		release(t, second.granted(0))
		if got.Fence() <= first.Fence() {
			t.Errorf("fence %d after %d", got.Fence(), first.Fence())
		}
	})
}

// Ten Engines, many keys, every fault of a connection at once: everybody is served, and nothing is left.
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
					p.Deafen(true)
				case 1:
					p.LoseEvents(3)
				case 2:
					p.DelayEvents(time.Duration(i%300) * time.Millisecond)
				case 3:
					p.RepeatEvents(i%2 == 0)
				case 4:
					store.LoseReplies(locker.OpAcquire, 2)
				case 5:
					store.LoseReplies(locker.OpRelease, 2)
				case 6:
					p.DelayEvents(0)
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

// The queue remembers who waits for much longer than a lease may live that was asked for long ago.
func TestAWaiterThatGivesUpLateLeavesTheQueue(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		head := waits(t, ls[1], locker.Rule{Key: "a"})
		second := waits(t, ls[2], locker.Rule{Key: "a", TTL: time.Second})
		<-time.After(8 * time.Second) // it last asked 7 s ago
		if n := store.Queued(); n != 2 {
			t.Errorf("%d entries for two waiters", n)
		}
		second.cancel()
		<-second.done
		synctest.Wait()
		if n := store.Queued(); n != 1 {
			t.Errorf("%d entries for one waiter", n)
		}
		release(t, lease)
		release(t, head.granted(0))
		nothingLeft(t, store)
	})
}

// The answer came too late for a lease, but not for the server, which counts from a later time.
func TestAGrantThatCameTooLateIsGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Delay(locker.OpAcquire, 995*time.Millisecond) // a lease of 1 s counts for 988 ms
		done := make(chan *locker.Lease, 1)
		go func() { done <- acquire(t, l, locker.Rule{Key: "a", TTL: time.Second}) }()
		<-time.After(900 * time.Millisecond)
		store.Delay(locker.OpAcquire, 0)
		<-time.After(95 * time.Millisecond)
		start := time.Now()
		release(t, <-done)
		since(t, start, 0, 200*time.Millisecond)
	})
}

// Whose question hangs when its wait is over has not been told that the key is busy now.
func TestARecheckThatHangsIsNotBusy(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		_ = acquire(t, ls[0], locker.Rule{Key: "a"})
		w := waits(t, ls[1], locker.Rule{Key: "a", Wait: 8 * time.Second})
		store.Delay(locker.OpAcquire, time.Minute)
		<-w.done
		store.Delay(locker.OpAcquire, 0)
		wantErr(t, w.err, "a", locker.ErrUnavailable)
		wantNot(t, w.err, locker.ErrBusy)
		since(t, w.since, 8*time.Second, 0)
	})
}

// AtLeast outlives its holder, also one to whom the key was handed a moment ago.
func TestAtLeastSurvivesACrashAfterAHandOver(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		lease := acquire(t, ls[0], locker.Rule{Key: "a"})
		w := waits(t, ls[1], locker.Rule{Key: "a", AtLeast: time.Minute})
		release(t, lease)
		_ = w.granted(0)
		ps[1].Die()
		start := time.Now()
		next := acquire(t, ls[2], locker.Rule{Key: "a"})
		since(t, start, time.Minute, 2*time.Second)
		release(t, next)
	})
}

// What was told about a token is no news about the next one of the same caller. In real time, and several times: a timer and
// a message must come together.
func TestNewsOfAnOldTokenIsNoNews(t *testing.T) {
	t.Parallel()
	for range 12 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			store := lockertest.NewMemory()
			var ls []*locker.Engine
			for range 3 {
				ls = append(ls, lockertest.NewLocker(t, store.NewProcess(), locker.WithFair(), locker.WithBackoff(locker.Constant(time.Nanosecond))))
			}
			first := acquire(t, ls[0], locker.Rule{Key: "a"})
			start := time.Now()
			at := func(ms int) { <-time.After(time.Until(start.Add(time.Duration(ms) * time.Millisecond))) }
			brief := asks(t, ls[1], locker.Rule{Key: "a", TTL: 50 * time.Millisecond, AtMost: 50 * time.Millisecond})
			at(10)
			long := asks(t, ls[2], locker.Rule{Key: "a", TTL: 10 * time.Second})
			at(950)
			store.Delay(locker.OpAcquire, 40*time.Millisecond)        // the first's re-check goes out at 1000 and runs at 1040;
			store.DelayReplies(locker.OpAcquire, 20*time.Millisecond) // its answer comes at 1060, later than its lease lives
			at(1033)
			release(t, first) // the first is told of its grant while its re-check is under way
			at(1050)
			store.Delay(locker.OpAcquire, 0)
			store.DelayReplies(locker.OpAcquire, 0)
			held := long.granted(2 * time.Second) // what came too late was given back
			<-time.After(40 * time.Millisecond)
			if brief.over() && brief.err == nil && brief.lease.Fence() < held.Fence() && brief.lease.Expires().After(long.at) {
				t.Errorf("fence %d counts %v into the lease with fence %d", brief.lease.Fence(), brief.lease.Expires().Sub(long.at), held.Fence())
			}
			release(t, held)
		})
	}
}
