package locker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// startReaders starts readers in a process, one after the other, until stop is called. Each
// reader reads for 10 ms, and the next reader begins before this reader ends.
func startReaders(t *testing.T, l locker.Locker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	const readers = 4
	for i := range readers {
		go func() {
			defer func() { done <- struct{}{} }()
			<-time.After(time.Duration(i) * 2500 * time.Microsecond)
			for ctx.Err() == nil {
				lease, err := l.Acquire(ctx, reading)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				<-time.After(10 * time.Millisecond)
				if err := lease.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	<-time.After(20 * time.Millisecond)
	synctest.Wait()
	return func() {
		cancel()
		for range readers {
			<-done
		}
	}
}

// A writer waits only for the readers that hold the key already, however many readers there are,
// and whatever message is lost.
func TestReadersStarveNoWriter(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(p *lockertest.Process) // the readers' process
		limit   time.Duration
	}{
		"all is well":             {func(*lockertest.Process) {}, 10 * time.Millisecond},
		"the message comes late":  {func(p *lockertest.Process) { p.Disturb(lockertest.EventFaults{Delay: 50 * time.Millisecond}) }, 70 * time.Millisecond},
		"the message is lost":     {func(p *lockertest.Process) { p.Disturb(lockertest.EventFaults{Lose: 1}) }, 1300 * time.Millisecond},
		"the process is not told": {func(p *lockertest.Process) { p.Disturb(lockertest.EventFaults{Deaf: true}) }, 11*time.Second + 20*time.Millisecond},
		"the process subscribes afresh": {func(p *lockertest.Process) {
			p.Disturb(lockertest.EventFaults{Deaf: true})
			time.AfterFunc(100*time.Millisecond, func() { p.Disturb(lockertest.EventFaults{}) })
		}, 120 * time.Millisecond},
		"the process may not have an inbox": {nil, 1200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, backend *lockertest.Memory) {
				ls, ps := processes(t, backend, 2)
				if tc.prepare == nil {
					unsubscribed := backend.NewProcess()
					unsubscribed.Disturb(lockertest.EventFaults{Refusal: &store.Refusal{Err: errors.New("NOPERM")}})
					ls[0], ps[0] = lockertest.NewLocker(t, unsubscribed), unsubscribed
				}
				stop := startReaders(t, ls[0])
				defer stop()
				if tc.prepare != nil {
					tc.prepare(ps[0])
				}
				for range 3 {
					start := time.Now()
					w := acquire(t, ls[1], writing)
					if d := time.Since(start); d > tc.limit {
						t.Fatalf("the writer has waited for %v, want at most %v", d, tc.limit)
					}
					release(t, w)
					<-time.After(time.Second)
				}
			})
		})
	}
}

// The subscription of a process that does not use it for a minute ends, and then no message about a
// writer comes. So each reader is renewed more often, however long its TTL.
func TestReadersWithALongTTLKeepTheirSubscription(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		lease := acquire(t, l, locker.Rule{Key: "a", Mode: locker.Shared, TTL: time.Hour})
		before := store.Calls(locker.OpRenew)
		<-time.After(10 * time.Minute)
		if n := store.Calls(locker.OpRenew) - before; n < 18 || n > 23 {
			t.Errorf("%d renewals in 10 minutes, want one in 30 s", n)
		}
		release(t, lease)
	})
}

func TestAWriterOfTheSameProcessIsNotStarvedEither(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 1)
		defer startReaders(t, ls[0])()
		for range 10 {
			start := time.Now()
			w := acquire(t, ls[0], writing)
			checkElapsed(t, start, 0, 10*time.Millisecond)
			release(t, w)
		}
	})
}

func TestReadersWaitForOneWriterOnly(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		w := acquire(t, ls[0], writing)
		second, third := startWaiting(t, ls[1], writing), startWaiting(t, ls[2], writing)
		r := startWaiting(t, ls[0], reading)
		release(t, w)
		lease := r.awaitGrant(0)
		second.checkWaiting()
		late := startWaiting(t, ls[1], reading)
		late.checkWaiting()
		release(t, lease)
		w = second.awaitGrant(0)
		late.checkWaiting()
		release(t, w)
		lease = late.awaitGrant(0)
		third.checkWaiting()
		release(t, lease)
		third.awaitGrant(0)
	})
}

func TestAnUpgradeIsRefusedAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		calls := 0
		err := locker.Run(t.Context(), l, reading, func(ctx context.Context) error {
			calls = store.Calls(locker.OpAcquire)
			// The lease of "b" lies between the two acquires of the key, but must not hide the
			// outer lease.
			return locker.Run(ctx, l, locker.Rule{Key: "b"}, func(ctx context.Context) error {
				calls++
				return locker.Run(ctx, l, writing, func(context.Context) error { return nil })
			})
		})
		wantErr(t, err, "a", locker.ErrUnsupported)
		if store.Calls(locker.OpAcquire) != calls {
			t.Fatal("the server was asked")
		}
		if err := locker.Run(t.Context(), l, writing, func(context.Context) error { return nil }); err != nil {
			t.Fatal("after the readers:", err)
		}
	})
}

func TestWhoReadsMayReadAgainWhileAWriterWaits(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		outer := acquire(t, ls[0], reading)
		w := startWaiting(t, ls[1], writing)
		calls := store.Calls(locker.OpAcquire)
		inner, err := ls[0].Acquire(outer.Context(), reading)
		if err != nil {
			t.Fatal(err)
		}
		if inner.Fence() != outer.Fence() || store.Calls(locker.OpAcquire) != calls {
			t.Fatal("it has another lease")
		}
		other := startWaiting(t, ls[0], reading) // a caller without a lease waits for its turn
		other.checkWaiting()
		release(t, outer)
		w.checkWaiting()
		if err := context.Cause(inner.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, inner)
		release(t, w.awaitGrant(0))
		other.awaitGrant(0)
	})
}

// A writer waits for a reader. If this reader acquires the key again, it must not wait for the
// writer, even if the second acquire cannot share the first lease.
func TestWhoReadsAloneAndAsksAgainWaitsForNobody(t *testing.T) {
	for name, o := range map[string]locker.Option{"WithFair": locker.WithFair(), "WithoutRenewal": locker.WithoutRenewal()} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				ls, _ := processes(t, store, 2, o)
				outer := acquire(t, ls[0], reading)
				w := startWaiting(t, ls[1], writing)
				inner, err := ls[0].Acquire(outer.Context(), patient(reading, time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if inner.Fence() != outer.Fence() {
					t.Fatalf("fence %d inside %d", inner.Fence(), outer.Fence())
				}
				release(t, outer)
				w.checkWaiting()
				release(t, inner)
				release(t, w.awaitGrant(0))
			})
		})
	}
}

// A reader whose Rule has other terms, here an EndAfter, cannot share the lease that it already
// has, and needs a lease of its own. If a writer waits, such a reader is refused at once.
func TestWhoReadsAndAsksForALeaseOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		outer := acquire(t, ls[0], reading)
		own := reading
		own.EndAfter = 10 * time.Second
		inner, err := ls[0].Acquire(outer.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		release(t, inner)
		w := startWaiting(t, ls[1], writing)
		start := time.Now()
		_, err = ls[0].Acquire(outer.Context(), own)
		wantErr(t, err, "a", locker.ErrBusy)
		if !strings.Contains(err.Error(), "already reads under the key") {
			t.Error(err)
		}
		checkElapsed(t, start, 0, 0)
		release(t, outer)
		release(t, w.awaitGrant(0))
	})
}

func TestReadersWhoDoNotWait(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		now := patient(reading, locker.NoWait)
		first := acquire(t, ls[0], now)
		second := acquire(t, ls[0], now)
		w := startWaiting(t, ls[1], writing)
		if _, err := ls[0].Acquire(t.Context(), now); !errors.Is(err, locker.ErrBusy) {
			t.Fatalf("while a writer waits: %v, want ErrBusy", err)
		}
		release(t, first)
		release(t, second)
		release(t, w.awaitGrant(0))
		release(t, acquire(t, ls[0], now))
	})
}
