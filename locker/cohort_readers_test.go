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

// Readers, on a server in memory that several processes share.

var (
	reading = locker.Rule{Key: "a", Mode: locker.Shared}
	writing = locker.Rule{Key: "a"}
)

// patient is r that waits for d.
func patient(r locker.Rule, d time.Duration) locker.Rule {
	r.Wait = d
	return r
}

func TestReadersOfAllProcessesShareAKey(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 3)
		one, other := acquire(t, ls[0], reading), acquire(t, ls[1], reading)
		if one.Fence() != other.Fence() || one.Fence() == 0 || one.Mode() != locker.Shared {
			t.Fatalf("fences %d and %d, mode %v", one.Fence(), other.Fence(), one.Mode())
		}
		w := waits(t, ls[2], writing)
		release(t, one)
		w.waitsStill()
		release(t, other)
		written := w.granted(0)
		if written.Fence() <= one.Fence() {
			t.Fatalf("fence %d after %d", written.Fence(), one.Fence())
		}
		r := waits(t, ls[0], reading)
		r.waitsStill()
		release(t, written)
		if again := r.granted(0); again.Fence() <= written.Fence() {
			t.Fatalf("fence %d after %d", again.Fence(), written.Fence())
		}
	})
}

// A reader looks for a phase and then joins its cohort. In between the phase may have begun: nobody else would tell it.
func TestAReaderThatComesWhileThePhaseBeginsIsLetIn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		first := acquire(t, ls[0], reading)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late, err := ls[0].LateReader(ctx, reading)
		if err != nil || late.Fence() != first.Fence() {
			t.Fatalf("a reader beside an open phase ended with %v", err)
		}
		release(t, first)
		w := waits(t, ls[1], writing)
		w.waitsStill()
		release(t, late)
		w.granted(0)
	})
}

func TestReadersOfAProcessShareOneLease(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		acquires, releases := store.Calls(locker.OpAcquire), store.Calls(locker.OpRelease)
		var readers []*locker.Lease
		for range 64 {
			readers = append(readers, acquire(t, ls[0], reading))
		}
		if n := store.Calls(locker.OpAcquire) - acquires; n != 1 {
			t.Fatalf("%d acquires were sent for 64 readers", n)
		}
		w := waits(t, ls[1], writing)
		for i, r := range readers {
			if r.Fence() != readers[0].Fence() {
				t.Fatalf("fence %d beside %d", r.Fence(), readers[0].Fence())
			}
			w.waitsStill()
			release(t, r)
			if n := store.Calls(locker.OpRelease) - releases; n != (i+1)/64 {
				t.Fatalf("%d releases were sent after reader %d", n, i+1)
			}
		}
		w.granted(0)
	})
}

func TestReadersWhoWaitTogetherAreServedTogether(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		w := acquire(t, ls[0], writing)
		acquires := store.Calls(locker.OpAcquire)
		var rs []*waiting
		for i := range 20 {
			rs = append(rs, waits(t, ls[i%2], reading))
		}
		release(t, w)
		for _, r := range rs {
			r.granted(0)
		}
		if n := store.Calls(locker.OpAcquire) - acquires; n != 2 {
			t.Fatalf("%d acquires were sent for 20 readers of two processes", n)
		}
		next := waits(t, ls[0], writing)
		for _, r := range rs {
			next.waitsStill()
			release(t, r.lease)
		}
		next.granted(0)
	})
}

// streams keeps a process reading: somebody always does, each for 10 ms.
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

// However many readers come, and whatever message is lost, a writer waits for those who are in.
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
					deaf := backend.NewProcess()
					deaf.FailOpen(&store.Refusal{Err: errors.New("NOPERM")})
					ls[0], ps[0] = lockertest.NewLocker(t, deaf), deaf
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
			return locker.Run(ctx, l, locker.Rule{Key: "b"}, func(ctx context.Context) error { // of another key: that is none
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
		other := waits(t, ls[0], reading) // another caller waits its turn
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

// Whatever makes readers ask for themselves, who reads and asks again must not wait for a writer that waits for it.
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

// A lease with times of its own is none that can be shared: behind a writer it is refused at once.
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

func TestALossEndsAllReadersOfTheProcess(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var rec lockertest.Recorder
		l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
		readers := []*locker.Lease{acquire(t, l, reading), acquire(t, l, reading), acquire(t, l, reading)}
		release(t, readers[2])
		store.Steal("a")
		for _, r := range readers[:2] {
			lost(t, r, locker.ErrLost)
		}
		synctest.Wait()
		releases := store.Calls(locker.OpRelease)
		for _, r := range readers[:2] {
			wantErr(t, r.Release(t.Context()), "a", locker.ErrLost)
		}
		synctest.Wait()
		if n := store.Calls(locker.OpRelease) - releases; n != 0 {
			t.Fatalf("%d releases were sent for what is not ours", n)
		}
		store.Free("a")
		release(t, acquire(t, l, reading)) // a new lease, not the lost one
	})
}

func TestReadersWhoseRenewalsFailEndInTime(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		rule := reading
		rule.TTL = 10 * time.Second
		one, other := acquire(t, ls[0], rule), acquire(t, ls[0], rule)
		start := time.Now()
		store.Fail(locker.OpRenew, errors.New("EOF"))
		w := waits(t, ls[1], writing)
		lost(t, one, locker.ErrLost)
		lost(t, other, locker.ErrLost)
		if d := time.Since(start); d >= rule.TTL {
			t.Fatalf("they were told after %v", d)
		}
		w.granted(10 * time.Second)
	})
}

func TestADeadReaderCostsItsOwnTimeOnly(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 3)
		rule := reading
		rule.TTL = 5 * time.Second
		acquire(t, ls[0], rule)
		alive := acquire(t, ls[1], reading)
		ps[0].Die()
		start := time.Now()
		w := waits(t, ls[2], writing)
		<-time.After(time.Minute) // the other goes on reading
		w.waitsStill()
		release(t, alive)
		w.granted(0)
		since(t, start, time.Minute, 0)

		release(t, w.lease)
		acquire(t, ls[1], rule)
		ps[1].Die()
		start = time.Now()
		acquire(t, ls[2], writing)
		since(t, start, 0, 5*time.Second+10*time.Millisecond)
	})
}

func TestAHoldOfReadersThatIsNotSoundIsNotShared(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		first := acquire(t, l, reading)
		store.Fail(locker.OpRenew, errors.New("EOF"))
		<-time.After(20 * time.Second)
		store.Fail(locker.OpRenew, nil)
		calls := store.Calls(locker.OpAcquire)
		second := acquire(t, l, reading)
		if n := store.Calls(locker.OpAcquire) - calls; n != 1 {
			t.Fatalf("%d acquires, want one: the lease has failed to be renewed", n)
		}
		release(t, first)
		release(t, second)
	})
}

func TestTermsOfReaders(t *testing.T) {
	longer, bounded, kept, once := reading, reading, reading, reading
	longer.TTL = time.Hour
	bounded.AtMost = time.Hour
	kept.AtLeast = time.Second
	once.Once = time.Minute
	for name, tc := range map[string]struct {
		rule   locker.Rule
		option locker.Option
		shares bool
	}{
		"the same":        {rule: reading, shares: true},
		"NoWait":          {rule: patient(reading, locker.NoWait), shares: true},
		"a Wait":          {rule: patient(reading, time.Second), shares: true},
		"another TTL":     {rule: longer},
		"AtMost":          {rule: bounded},
		"AtLeast":         {rule: kept},
		"Once":            {rule: once},
		"WithFair":        {rule: reading, option: locker.WithFair()},
		"WithoutQueue":    {rule: reading, option: locker.WithoutQueue()},
		"WithoutRenewal":  {rule: reading, option: locker.WithoutRenewal()},
		"WithHandoffs(2)": {rule: reading, option: locker.WithHandoffs(2), shares: true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				var opts []locker.Option
				if tc.option != nil {
					opts = append(opts, tc.option)
				}
				l := lockertest.NewLocker(t, store, opts...)
				acquire(t, l, reading)
				calls := store.Calls(locker.OpAcquire)
				second := acquire(t, l, tc.rule)
				if shared := store.Calls(locker.OpAcquire) == calls; shared != tc.shares {
					t.Fatalf("shares the lease: %v, want %v", shared, tc.shares)
				}
				release(t, second)
			})
		})
	}
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

func TestAReaderWithAtMostEndsAloneAndAKeptOneKeepsWritersOut(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		bounded, kept := reading, reading
		bounded.AtMost, kept.AtLeast = time.Minute, 2*time.Minute
		start := time.Now()
		short, other := acquire(t, ls[0], bounded), acquire(t, ls[0], reading)
		long := acquire(t, ls[0], kept)
		w := waits(t, ls[1], writing)
		lost(t, short, locker.ErrExpired)
		if err := context.Cause(other.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, other)
		release(t, long)
		w.granted(2 * time.Minute)
		since(t, start, 2*time.Minute, 10*time.Millisecond)
	})
}

func TestAnExtensionOfOneReaderHarmsNoOther(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 1)
		one, other := acquire(t, ls[0], reading), acquire(t, ls[0], reading)
		expires := other.Expires()
		if err := one.Extend(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		if !other.Expires().Equal(expires) {
			t.Fatalf("the other's lease ends at %v, before at %v", other.Expires(), expires)
		}
		if err := one.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		calls := store.Calls(locker.OpAcquire)
		third := acquire(t, ls[0], reading)
		if store.Calls(locker.OpAcquire) == calls {
			t.Fatal("a third reader shares a lease that would outlive its process for an hour")
		}
		release(t, one)
		<-time.After(2 * time.Hour)
		release(t, other)
		release(t, third)
	})
}

func TestReadersAfterAnEmptyRestart(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		one, other := acquire(t, ls[0], reading), acquire(t, ls[1], reading)
		start := time.Now()
		store.Wipe()
		lost(t, one, locker.ErrLost)
		lost(t, other, locker.ErrLost)
		since(t, start, 0, 10*time.Millisecond) // they renew as soon as they have subscribed again
		acquire(t, ls[0], writing)
	})
}

func TestABreakThrowsAllReadersOut(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, _ := processes(t, store, 2)
		leases := []*locker.Lease{acquire(t, ls[0], reading), acquire(t, ls[0], reading), acquire(t, ls[1], reading)}
		i, err := ls[0].Inspect(t.Context(), "a")
		if err != nil || i.Readers != 2 || i.Mode != locker.Shared || i.Fence != leases[0].Fence() {
			t.Fatalf("%+v %v, want two processes that read", i, err)
		}
		if err := ls[1].Revoke(t.Context(), "a", i.Fence, "drill"); err != nil {
			t.Fatal(err)
		}
		for _, l := range leases {
			lost(t, l, locker.ErrRevoked)
		}
	})
}

func TestAReaderThatGivesUpWhileItIsLetIn(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		ls, ps := processes(t, store, 2)
		w := acquire(t, ls[0], writing)
		leader, follower := waits(t, ls[1], reading), waits(t, ls[1], reading)
		ps[1].DelayEvents(50 * time.Millisecond)
		release(t, w)
		leader.cancel()
		follower.cancel()
		<-leader.done
		<-follower.done
		start := time.Now()
		acquire(t, ls[0], writing)
		since(t, start, 0, 10*time.Millisecond)
	})
}

func TestALockerWithoutReadersSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, struct{ locker.Store }{store})
		_, err := l.Acquire(t.Context(), reading)
		wantErr(t, err, "a", locker.ErrUnsupported)
		if err := acquire(t, l, writing).Downgrade(t.Context()); !errors.Is(err, locker.ErrUnsupported) {
			t.Fatalf("Downgrade: %v, want ErrUnsupported", err)
		}
	})
}

func TestCloseEndsReaders(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		readers := []*locker.Lease{acquire(t, l, reading), acquire(t, l, reading)}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range readers {
			lost(t, r, locker.ErrClosed)
			release(t, r)
		}
		if store.Len() != 0 {
			t.Fatal("the key is held still")
		}
	})
}
