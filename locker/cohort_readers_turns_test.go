package locker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/store"
)

// streams starts readers in a process, one after the other, until stop is called. Each reads
// for 10 ms, and the next one begins before it ends.
func streams(t *testing.T, l locker.Locker) (stop func()) {
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
		before func(p *lockertest.Process) // the readers' process
		within time.Duration
	}{
		"all is well":             {func(*lockertest.Process) {}, 10 * time.Millisecond},
		"the message comes late":  {func(p *lockertest.Process) { p.DelayEvents(50 * time.Millisecond) }, 70 * time.Millisecond},
		"the message is lost":     {func(p *lockertest.Process) { p.LoseEvents(1) }, 1300 * time.Millisecond},
		"the process is not told": {func(p *lockertest.Process) { p.Deafen(true) }, 11*time.Second + 20*time.Millisecond},
		"the process subscribes afresh": {func(p *lockertest.Process) {
			p.Deafen(true)
			time.AfterFunc(100*time.Millisecond, func() { p.Deafen(false) })
		}, 120 * time.Millisecond},
		"the process may not have an inbox": {nil, 1200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, backend *lockertest.Memory) {
				ls, ps := processes(t, backend, 2)
				if tc.before == nil {
					unsubscribed := backend.NewProcess()
					unsubscribed.FailOpen(&store.Refusal{Err: errors.New("NOPERM")})
					ls[0], ps[0] = lockertest.NewLocker(t, unsubscribed), unsubscribed
				}
				stop := streams(t, ls[0])
				defer stop()
				if tc.before != nil {
					tc.before(ps[0])
				}
				for range 3 {
					start := time.Now()
					w := acquire(t, ls[1], writing)
					if d := time.Since(start); d > tc.within {
						t.Fatalf("the writer has waited for %v, want at most %v", d, tc.within)
					}
					release(t, w)
					<-time.After(time.Second)
				}
			})
		})
	}
}

func TestAWriterOfTheSameProcessIsNotStarvedEither(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 1)
		defer streams(t, ls[0])()
		for range 10 {
			start := time.Now()
			w := acquire(t, ls[0], writing)
			since(t, start, 0, 10*time.Millisecond)
			release(t, w)
		}
	})
}

func TestReadersWaitForOneWriterOnly(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		w := acquire(t, ls[0], writing)
		second, third := waits(t, ls[1], writing), waits(t, ls[2], writing)
		r := waits(t, ls[0], reading)
		release(t, w)
		lease := r.granted(0)
		second.waitsStill()
		late := waits(t, ls[1], reading)
		late.waitsStill()
		release(t, lease)
		w = second.granted(0)
		late.waitsStill()
		release(t, w)
		lease = late.granted(0)
		third.waitsStill()
		release(t, lease)
		third.granted(0)
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
		w := waits(t, ls[1], writing)
		calls := store.Calls(locker.OpAcquire)
		inner, err := ls[0].Acquire(outer.Context(), reading)
		if err != nil {
			t.Fatal(err)
		}
		if inner.Fence() != outer.Fence() || store.Calls(locker.OpAcquire) != calls {
			t.Fatal("it has another lease")
		}
		other := waits(t, ls[0], reading) // a caller without a lease waits for its turn
		other.waitsStill()
		release(t, outer)
		w.waitsStill()
		if err := context.Cause(inner.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, inner)
		release(t, w.granted(0))
		other.granted(0)
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
				w := waits(t, ls[1], writing)
				inner, err := ls[0].Acquire(outer.Context(), patient(reading, time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if inner.Fence() != outer.Fence() {
					t.Fatalf("fence %d inside %d", inner.Fence(), outer.Fence())
				}
				release(t, outer)
				w.waitsStill()
				release(t, inner)
				release(t, w.granted(0))
			})
		})
	}
}

// A reader whose Rule has other terms, here an AtMost, cannot share the lease that it already has,
// and needs a lease of its own. If a writer waits, such a reader is refused at once.
func TestWhoReadsAndAsksForALeaseOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		outer := acquire(t, ls[0], reading)
		own := reading
		own.AtMost = 10 * time.Second
		inner, err := ls[0].Acquire(outer.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		release(t, inner)
		w := waits(t, ls[1], writing)
		start := time.Now()
		_, err = ls[0].Acquire(outer.Context(), own)
		wantErr(t, err, "a", locker.ErrBusy)
		if !strings.Contains(err.Error(), "already reads under the key") {
			t.Error(err)
		}
		since(t, start, 0, 0)
		release(t, outer)
		release(t, w.granted(0))
	})
}

func TestReadersWhoDoNotWait(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		now := patient(reading, locker.NoWait)
		first := acquire(t, ls[0], now)
		second := acquire(t, ls[0], now)
		w := waits(t, ls[1], writing)
		if _, err := ls[0].Acquire(t.Context(), now); !errors.Is(err, locker.ErrBusy) {
			t.Fatalf("while a writer waits: %v, want ErrBusy", err)
		}
		release(t, first)
		release(t, second)
		release(t, w.granted(0))
		release(t, acquire(t, ls[0], now))
	})
}
