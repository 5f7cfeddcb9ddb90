package lockertest_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// These tests are about the faults that a Memory and its processes can simulate. The laws of Stores
// do not cover these faults.

// world is one Memory with two processes. An owner in the first process holds the key "a", and an
// owner in the other process waits for it.
type world struct {
	*testing.T
	memory *lockertest.Memory
	second *lockertest.Process
	stop   func() // ends the other process's Listen
	began  time.Time

	mu     sync.Mutex
	events []store.Event // the events that the other process has received
}

func (w *world) receive(e store.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, memory: lockertest.NewMemory(), began: time.Now()}
		w.second = w.memory.NewProcess()
		w.stop = w.second.Listen(w.receive)
		defer w.stop()
		if _, err := w.second.Open(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		w.checkState(w.acquire(w.memory, w.holder()), store.Granted)
		test(w)
	})
}

func (w *world) holder() store.Claim {
	return store.Claim{Key: "a", Owner: "holder", TTL: time.Hour, FenceCount: 1}
}

func (w *world) waiter(owner string) store.Claim {
	return store.Claim{
		Key: "a", Owner: owner, TTL: time.Hour, FenceCount: 1, Queue: true, Inbox: w.second.Inbox("a"), HandoffTTL: 2 * time.Second,
	}
}

func (w *world) acquire(s store.Store, c store.Claim) store.Grant {
	w.Helper()
	g, err := s.Acquire(w.Context(), c)
	if err != nil {
		w.Fatal(err)
	}
	return g
}

// checkState fails the test unless the answer g has the state s.
func (w *world) checkState(g store.Grant, s store.State) {
	w.Helper()
	if g.State != s {
		w.Fatalf("answered %q, want %q", g.State, s)
	}
}

func (w *world) free() {
	w.Helper()
	g, err := w.memory.Release(w.Context(), w.holder())
	if err != nil {
		w.Fatal(err)
	}
	w.checkState(g, store.Released)
}

// checkEvents fails the test unless the second process has received events of these kinds so far.
func (w *world) checkEvents(kinds ...store.EventKind) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var events []store.EventKind
	for _, e := range w.events {
		events = append(events, e.Kind)
	}
	if !slices.Equal(events, kinds) {
		w.Fatalf("events %v after %v, want %v", events, time.Since(w.began), kinds)
	}
}

func sleep(d time.Duration) { <-time.After(d) }

func TestEventsComeLateAndInOrder(t *testing.T) {
	inWorld(t, func(w *world) {
		w.second.Disturb(lockertest.EventFaults{Delay: time.Second})
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		w.checkState(w.acquire(w.second, w.waiter("c")), store.Busy)
		w.free()
		if _, err := w.second.Release(w.Context(), w.waiter("b")); err != nil {
			t.Fatal(err)
		}
		sleep(time.Second - 1)
		w.checkEvents()
		sleep(1)
		w.checkEvents(store.EventGranted, store.EventGranted)
		if w.events[0].Owner != "b" || w.events[1].Owner != "c" {
			t.Errorf("told %+v", w.events)
		}
	})
}

func TestAnEventMayComeBeforeTheAnswer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.memory.DelayReplies(locker.OpAcquire, time.Second)
		answered := make(chan store.Grant)
		go func() { answered <- w.acquire(w.second, w.waiter("b")) }()
		synctest.Wait()
		w.free()
		w.checkEvents(store.EventGranted)
		w.checkState(<-answered, store.Busy)
		if took := time.Since(w.began); took < time.Second {
			t.Errorf("answered after %v", took)
		}
	})
}

func TestEventsAreLostAndRepeated(t *testing.T) {
	inWorld(t, func(w *world) {
		w.second.Disturb(lockertest.EventFaults{Lose: 1})
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		w.free()
		w.checkEvents()
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Granted)
		w.checkState(w.acquire(w.second, w.waiter("c")), store.Busy)
		w.second.Disturb(lockertest.EventFaults{Repeat: true})
		if _, err := w.second.Release(w.Context(), w.waiter("b")); err != nil {
			t.Fatal(err)
		}
		w.checkEvents(store.EventGranted, store.EventGranted)
	})
}

func TestAPausedProcessHangsAndCountsAsListening(t *testing.T) {
	inWorld(t, func(w *world) {
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		w.second.Pause()
		answered := make(chan store.Grant, 1)
		go func() { answered <- w.acquire(w.second, w.waiter("b")) }()
		w.free()
		sleep(time.Hour)
		w.checkEvents()
		if len(answered) > 0 {
			t.Error("a paused process was answered")
		}
		// The next owner gets the key, because the hand-off to the waiter has lapsed.
		w.checkState(w.acquire(w.memory, store.Claim{Key: "a", Owner: "next", TTL: time.Hour}), store.Granted)
		w.second.Resume()
		w.checkState(<-answered, store.Busy)
		w.checkEvents(store.EventGranted)
	})
}

func TestAKilledProcessIsSilentAndItsCallsUnclear(t *testing.T) {
	inWorld(t, func(w *world) {
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		w.second.Pause()
		failed := make(chan error)
		go func() {
			_, err := w.second.Acquire(t.Context(), w.waiter("c"))
			failed <- err
		}()
		synctest.Wait()
		w.second.Die()
		var no *store.Refusal
		if err := <-failed; err == nil || errors.As(err, &no) {
			t.Errorf("the call that hung: %v", err)
		}
		if _, err := w.second.Renew(t.Context(), nil); err == nil || errors.As(err, &no) {
			t.Errorf("a call: %v", err)
		}
		if _, err := w.second.Open(t.Context(), "a"); err == nil {
			t.Error("it opened an inbox")
		}
		w.free()
		w.memory.Wipe()
		w.second.Disturb(lockertest.EventFaults{})
		w.checkEvents()
	})
}

func TestACallThatHasLeftAKilledProcessRuns(t *testing.T) {
	inWorld(t, func(w *world) {
		w.memory.Delay(locker.OpAcquire, time.Second)
		failed := make(chan error)
		go func() {
			_, err := w.second.Acquire(t.Context(), store.Claim{Key: "zombie", Owner: "z", TTL: time.Hour})
			failed <- err
		}()
		synctest.Wait()
		w.second.Die()
		if err := <-failed; err == nil {
			t.Error("the killed process was answered")
		}
		if i, _ := w.memory.Inspect(t.Context(), "zombie"); !i.Held {
			t.Error("the call did not run")
		}
	})
}

func TestTheServersClockSteps(t *testing.T) {
	inWorld(t, func(w *world) {
		w.memory.StepClock(-time.Minute)
		g := w.acquire(w.memory, store.Claim{Key: "a", Owner: "b"})
		if g.Holder.Left != time.Hour+time.Minute {
			t.Errorf("%v left after a step back", g.Holder.Left)
		}
		if ahead := time.Until(g.At); ahead != -time.Minute {
			t.Errorf("the server's clock is %v ahead", ahead)
		}
		w.memory.StepClock(2 * time.Hour)
		w.checkState(w.acquire(w.memory, store.Claim{Key: "a", Owner: "b", TTL: time.Second}), store.Granted)
	})
}

func TestARestartIsTold(t *testing.T) {
	inWorld(t, func(w *world) {
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		w.memory.Wipe()
		w.checkEvents(store.EventReopened)
		if w.memory.Len() != 0 || w.memory.Queued() != 0 {
			t.Errorf("%d leases and %d waiters outlived it", w.memory.Len(), w.memory.Queued())
		}
	})
}

func TestADeafProcessIsToldNothingUntilItHearsAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.second.Disturb(lockertest.EventFaults{Deaf: true})
		if g := w.acquire(w.second, w.waiter("b")); !g.NotListening || w.second.Inbox("a") == "" {
			t.Error("the server must know, the process must not")
		}
		w.second.Reset("another inbox")
		w.free()
		w.checkEvents()
		w.second.Disturb(lockertest.EventFaults{})
		w.checkEvents(store.EventReopened)
		if n := w.memory.Queued(); n != 0 {
			t.Errorf("%d entries in a queue whose only waiter had lost its subscription", n)
		}
	})
}

func TestAKeyThatIsFreedByHandIsNoNewsForTheQueue(t *testing.T) {
	inWorld(t, func(w *world) {
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		w.memory.Free("a")
		w.checkEvents()
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Granted)
		w.memory.Free("a")
		w.checkEvents(store.EventFree) // the queue is empty, so each process is notified that its waiters may ask again
	})
}

func TestAServerThatRefusesSubscriptions(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.memory.NewProcess()
		if _, err := p.Open(t.Context(), "a"); err == nil {
			t.Error("an inbox was opened that no process listens at")
		}
		stop := p.Listen(func(store.Event) {})
		defer stop()
		no := &store.Refusal{Err: errors.New("NOPERM")}
		p.Disturb(lockertest.EventFaults{Refusal: no})
		if _, err := p.Open(t.Context(), "a"); !errors.Is(err, no) || p.Inbox("a") != "" {
			t.Errorf("inbox %q, %v", p.Inbox("a"), err)
		}
		p.Disturb(lockertest.EventFaults{})
		p.Disturb(lockertest.EventFaults{Delay: time.Second})
		start := time.Now()
		if _, err := p.Open(t.Context(), "a"); err != nil || time.Since(start) != time.Second || p.Inbox("a") == "" {
			t.Errorf("inbox %q after %v, %v", p.Inbox("a"), time.Since(start), err)
		}
	})
}

func TestTwoEnginesOnOneProcessHaveNoInbox(t *testing.T) {
	inWorld(t, func(w *world) {
		waiter := w.waiter("b")
		stop := w.second.Listen(func(store.Event) {})
		if inbox := w.second.Inbox("a"); inbox != "" {
			t.Errorf("inbox %q", inbox)
		}
		if g := w.acquire(w.second, waiter); !g.NotListening {
			t.Error("one process would receive the events of the other")
		}
		stop()
		stop()
		if g := w.acquire(w.second, waiter); g.NotListening {
			t.Error("no subscription after the other has stopped")
		}
	})
}

func TestNothingIsToldAfterStop(t *testing.T) {
	inWorld(t, func(w *world) {
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		w.second.Disturb(lockertest.EventFaults{Delay: time.Second})
		w.free()
		w.stop()
		sleep(time.Minute)
		w.checkEvents()
		w.stop = w.second.Listen(w.receive)
		w.second.Pause()
		w.memory.Wipe()
		w.stop() // stop returns, although the listener hangs
		w.second.Resume()
		w.checkEvents()
	})
}

func TestAQueueThatNobodyAsksForIsForgotten(t *testing.T) {
	inWorld(t, func(w *world) {
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		sleep(59 * time.Second)
		w.checkState(w.acquire(w.second, w.waiter("b")), store.Busy)
		sleep(59 * time.Second)
		if n := w.memory.Queued(); n != 1 {
			t.Errorf("%d in the queue of a waiter that asks", n)
		}
		sleep(2 * time.Second)
		if n := w.memory.Queued(); n != 0 {
			t.Errorf("%d entries in the queue of an unused key", n)
		}
	})
}

func TestLockersOverOneMemoryAreProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		one, other := lockertest.NewLocker(t, store), lockertest.NewLocker(t, store)
		lease, err := one.Acquire(t.Context(), locker.Rule{Key: "a"})
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan error)
		go func() {
			next, err := other.Acquire(t.Context(), locker.Rule{Key: "a"})
			if err == nil {
				err = next.Release(t.Context())
			}
			granted <- err
		}()
		sleep(100 * time.Millisecond)
		start := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
