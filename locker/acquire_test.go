package locker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestABusyKeyIsRefusedWithTheTimeToComeBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", TTL: 10 * time.Second})
		defer release(t, lease)

		start := time.Now()
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		checkElapsed(t, start, 0, 0)
		e := wantErr(t, err, "a", locker.ErrBusy)
		wantNot(t, err, locker.ErrUnavailable)
		if e.RetryAfter <= 0 || e.RetryAfter > 10*time.Second {
			t.Fatalf("retry after %v", e.RetryAfter)
		}

		_, err = l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 3 * time.Second})
		checkElapsed(t, start, 3*time.Second, 0)
		wantErr(t, err, "a", locker.ErrBusy)
		if !strings.Contains(err.Error(), "retry after") || !strings.Contains(err.Error(), "acquire a") {
			t.Fatalf("the text does not teach: %v", err)
		}
	})
}

func TestAForeignHolderWithoutEndGivesATimeToComeBack(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		store.Occupy("a", 0)
		_, err := lockertest.NewLocker(t, store).Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
		if e := wantErr(t, err, "a", locker.ErrBusy); e.RetryAfter < time.Millisecond {
			t.Fatalf("retry after %v", e.RetryAfter)
		}
		if calls := store.Calls(locker.OpAcquire); calls > 30 {
			t.Fatalf("%d calls in a second: it spins", calls)
		}
	})
}

func TestAReleaseWakesAWaiterAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithBackoff(locker.Exponential(time.Hour, time.Hour)), locker.WithPrefix("p:"))
		lease := acquire(t, l, locker.Rule{Key: "a"})
		got := make(chan *locker.Lease)
		go func() {
			next, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
			if err != nil {
				t.Error(err)
			}
			got <- next
		}()
		synctest.Wait()
		start := time.Now()
		release(t, lease)
		release(t, <-got)
		checkElapsed(t, start, 0, 0)
	})
}

func TestAWaiterComesWhenTheHoldersTimeIsOver(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithBackoff(locker.Exponential(time.Hour, time.Hour)))
		store.Occupy("a", 5*time.Second)
		start := time.Now()
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		checkElapsed(t, start, 5*time.Second, 2*time.Millisecond)
	})
}

func TestEveryHoldHasATokenOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		s := &spy{Store: store}
		l := lockertest.NewLocker(t, s)
		for range 100 {
			release(t, acquire(t, l, locker.Rule{Key: "a"}))
		}
		// The delay is longer than the lease. So the grant comes too late, and the Engine repeats
		// the acquire.
		store.Delay(locker.OpAcquire, 150*time.Millisecond)
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", TTL: 100 * time.Millisecond, Wait: 5 * time.Second})
		wantErr(t, err, "a", locker.ErrUnavailable)
		s.mu.Lock() // the last acquire may still be under way
		acquires := slices.Clone(s.acquires)
		s.mu.Unlock()
		if len(acquires) < 103 {
			t.Fatal("positive control: nothing was tried again")
		}
		seen := map[string]bool{}
		for _, c := range acquires {
			if seen[c.Owner] {
				t.Fatal("a token was used for two holds")
			}
			seen[c.Owner] = true
		}
		store.Delay(locker.OpAcquire, 0)
		time.Sleep(time.Minute)
		if store.Len() != 0 {
			t.Fatal("the late grants were not given back")
		}
	})
}

func TestWhoIsNeverAnsweredHearsUnavailableWithinASecond(t *testing.T) {
	for name, failure := range map[string]error{
		"unclear":   errors.New("EOF"),
		"temporary": &store.Refusal{Temporary: true, Err: errors.New("LOADING")},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, backend *lockertest.Memory) {
				l := lockertest.NewLocker(t, backend)
				backend.Fail(locker.OpAcquire, failure)
				start := time.Now()
				_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
				checkElapsed(t, start, time.Second, 300*time.Millisecond)
				wantErr(t, err, "a", locker.ErrUnavailable, failure)
				wantNot(t, err, locker.ErrBusy)
				if backend.Calls(locker.OpAcquire) < 3 {
					t.Fatal("it was not repeated")
				}

				start = time.Now()
				_, err = l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
				checkElapsed(t, start, time.Second, 300*time.Millisecond)
				wantErr(t, err, "a", locker.ErrUnavailable)
			})
		})
	}
}

func TestAWaiterThatSawAHolderOutlastsAnOutage(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		store.Occupy("a", 20*time.Second)
		time.AfterFunc(time.Second, func() { store.Fail(locker.OpAcquire, errors.New("EOF")) })
		time.AfterFunc(30*time.Second, func() { store.Fail(locker.OpAcquire, nil) })
		start := time.Now()
		release(t, acquire(t, l, locker.Rule{Key: "a"}))
		checkElapsed(t, start, 30*time.Second, time.Second)
	})
}

func TestARefusalForGoodIsReturnedAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, backend *lockertest.Memory) {
		l := lockertest.NewLocker(t, backend)
		oom := &store.Refusal{Err: errors.New("OOM")}
		backend.Fail(locker.OpAcquire, oom)
		start := time.Now()
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
		checkElapsed(t, start, 0, 0)
		wantErr(t, err, "a", locker.ErrUnavailable, oom)
		if n := backend.Calls(locker.OpAcquire); n != 1 {
			t.Fatalf("%d calls", n)
		}
		if n := backend.Calls(locker.OpRelease); n != 0 {
			t.Fatalf("%d undos of a call that did not run", n)
		}
	})
}

func TestAnOutageIsNotPolledAtTheHoldersPace(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store, locker.WithBackoff(locker.Exponential(time.Second, time.Second)))
		store.Occupy("a", time.Millisecond)
		time.AfterFunc(500*time.Microsecond, func() { store.Fail(locker.OpAcquire, errors.New("EOF")) })
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Minute})
		wantErr(t, err, "a", locker.ErrUnavailable) // no ErrBusy, because the holder may have released the lease meanwhile
		wantNot(t, err, locker.ErrBusy)
		if n := store.Calls(locker.OpAcquire); n > 70 {
			t.Fatalf("%d calls in a minute of outage", n)
		}
	})
}
