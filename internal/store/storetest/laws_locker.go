package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// lockerLaws concern what a Locker on the Store promises to its users.
var lockerLaws = []law{
	{name: "Run excludes", check: func(b *bench) {
		l := b.locker()
		counter := 0
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					if err := locker.Run(b.Context(), l, locker.Rule{Key: b.key}, func(context.Context) error {
						counter++ // the race detector checks this line
						return nil
					}); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if counter != 40 {
			b.Fatalf("%d of 40 runs counted", counter)
		}
	}},
	{name: "a lost answer of an acquire is a grant", needs: losesReplies, check: func(b *bench) {
		l := b.locker()
		for _, wait := range []time.Duration{locker.NoWait, 10 * time.Second} {
			b.LoseReply(b.TB, locker.OpAcquire, b.key)
			lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key, Wait: wait})
			if err != nil {
				b.Fatalf("with a Wait of %v: %v", wait, err)
			}
			if err := lease.Release(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}},
	{name: "a lost answer of a release is not a loss", needs: losesReplies, check: func(b *bench) {
		l := b.locker()
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key})
		if err != nil {
			b.Fatal(err)
		}
		b.LoseReply(b.TB, locker.OpRelease, b.key)
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}},
	{name: "a lease that was taken away is a loss", needs: breaks, check: func(b *bench) {
		l := b.locker()
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Revoke(b.Context(), b.key, lease.Fence(), "drill"); err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(b.Context()); !errors.Is(err, locker.ErrRevoked) || !errors.Is(err, locker.ErrLost) {
			b.Fatalf("release: %v, want ErrRevoked", err)
		}
		if err := l.Revoke(b.Context(), b.key, lease.Fence(), "drill"); !errors.Is(err, locker.ErrGone) {
			b.Fatalf("second break: %v, want ErrGone", err)
		}
	}},
	{name: "a lease is renewed as long as it is held", check: func(b *bench) {
		l := b.locker()
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key, TTL: 2 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		first := lease.Expires()
		b.eventually(10*time.Second, "the time of a lease that is not renewed passed", func() bool { return time.Now().After(first.Add(100 * time.Millisecond)) })
		b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire of the key by another")
		if lease.Context().Err() != nil {
			b.Fatal(context.Cause(lease.Context()))
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}},
	{name: "release with a cancelled context releases", check: func(b *bench) {
		l := b.locker()
		ctx, cancel := context.WithCancel(b.Context())
		lease, err := l.Acquire(ctx, locker.Rule{Key: b.key})
		if err != nil {
			b.Fatal(err)
		}
		cancel()
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
		b.newHolder()
	}},

	// laws about several processes
	{name: "waiters of two processes are all served, one at a time", needs: hasProcesses, check: func(b *bench) {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		counter, inside := 0, new(atomic.Int32)
		var wg sync.WaitGroup
		for _, l := range []locker.Locker{b.locker(), b.another()} {
			for range 4 {
				wg.Go(func() {
					for range 5 {
						if err := locker.Run(ctx, l, locker.Rule{Key: b.key}, func(context.Context) error {
							if inside.Add(1) > 1 {
								b.Error("two callers hold the key at once")
							}
							counter++ // the race detector checks this line
							<-time.After(time.Millisecond)
							inside.Add(-1)
							return nil
						}); err != nil {
							b.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		if counter != 40 {
			b.Fatalf("%d of 40 runs counted", counter)
		}
	}},
	{name: "fair Lockers grant in the order in which the callers of all processes began to wait", needs: allOf(queues, hasProcesses, breaks), check: func(b *bench) {
		one, other := b.locker(locker.WithFair()), b.another(locker.WithFair())
		lease := b.hold(one)
		var waits []*wait
		for i, l := range []*locker.Engine{other, one, one, other, one, other, other} {
			waits = append(waits, b.begin(l))
			b.eventually(10*time.Second, "the caller is in the queue", func() bool { return b.info().Waiters == i+1 })
		}
		for i, w := range waits {
			b.end(lease)
			lease = w.awaitLease(10 * time.Second)
			for _, later := range waits[i+1:] {
				later.checkWaiting()
			}
		}
		b.end(lease)
	}},
	{name: "a process that was killed while it waited does not hold up the others", needs: allOf(notifies, kills, breaks), check: func(b *bench) {
		backend := b.Another(b.TB)
		killed := b.mortal(backend)
		lease := b.hold(b.locker())
		b.begin(killed)
		b.begin(killed) // the second caller waits in the process or in the queue
		b.eventually(10*time.Second, "the callers are in the queue", func() bool { return b.info().Waiters >= 1 })
		before := b.info().Waiters
		next := b.begin(b.another())
		b.eventually(10*time.Second, "the caller is in the queue", func() bool { return b.info().Waiters > before })
		b.Kill(b.TB, backend)
		b.end(lease)
		b.end(next.awaitLease(2 * time.Second)) // the killed process delays no other waiter
	}},
	{name: "a process that was killed while it held costs the others its lease only", needs: allOf(queues, kills), check: func(b *bench) {
		backend := b.Another(b.TB)
		killed := b.mortal(backend)
		_, err := killed.Acquire(b.Context(), locker.Rule{Key: b.key, TTL: 2 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		next := b.begin(b.locker())
		next.checkWaiting()
		b.Kill(b.TB, backend)
		b.end(next.awaitLease(4 * time.Second))
	}},
	{name: "a process that cannot subscribe is served, and does not delay the others", needs: allOf(notifies, hasProcesses, losesSubscriptions, breaks), check: func(b *bench) {
		backend := b.Another(b.TB)
		unsubscribed, other := lockertest.NewLocker(b.TB, backend), b.another()
		lease := b.hold(b.locker())
		served := make(chan error, 2)
		for i, l := range []locker.Locker{unsubscribed, other} {
			go func() {
				rule := locker.Rule{Key: b.key, Wait: 30 * time.Second}
				served <- locker.Run(b.Context(), l, rule, func(context.Context) error { return nil })
			}()
			b.eventually(10*time.Second, "the caller is in the queue", func() bool { return b.info().Waiters == i+1 })
		}
		b.Deafen(b.TB, backend)
		b.end(lease)
		for range 2 {
			if err := <-served; err != nil {
				b.Fatal(err)
			}
		}
	}},
	{name: "a process that has lost its subscription notices it while it waits, and subscribes again", needs: allOf(notifies, hasProcesses, losesSubscriptions, breaks), check: func(b *bench) {
		backend := b.Another(b.TB)
		unsubscribed := lockertest.NewLocker(b.TB, backend)
		lease := b.hold(b.locker())
		first := b.begin(unsubscribed)
		b.eventually(10*time.Second, "the caller is in the queue", func() bool { return b.info().Waiters == 1 })
		b.Deafen(b.TB, backend)
		b.eventually(20*time.Second, "a process listens at the inbox", func() bool {
			probe := b.waiter(store.CapabilitiesOf(backend).Notifier.Inbox(b.key))
			g := b.queue(probe)
			b.checkState(b.release(probe), store.NotOurs, "release by a waiter")
			return probe.Inbox != "" && !g.NotListening
		})
		b.end(lease)
		b.end(first.awaitLease(10 * time.Second))
	}},
	{name: "waiters that were cancelled leave nothing", needs: allOf(queues, hasProcesses, breaks, counts), check: func(b *bench) {
		one, other := b.locker(), b.another()
		lease := b.hold(one)
		var waits []*wait
		for range 3 {
			waits = append(waits, b.begin(one), b.begin(other))
		}
		b.eventually(10*time.Second, "the other process is in the queue", func() bool { return b.info().Waiters >= 1 })
		for _, w := range waits {
			w.giveUp()
		}
		b.eventually(10*time.Second, "the queue is empty", func() bool { return b.Queued(b.TB, b.key) == 0 })
		b.end(lease) // if an acquire under way arrives later, it is undone
		b.eventually(10*time.Second, "no key is held and the queue is empty", func() bool {
			i := b.info()
			return !i.Held && i.Waiters == 0 && b.Queued(b.TB, b.key) == 0
		})
		b.end(b.hold(other))
	}},
}

// another returns a Locker of another process.
func (b *bench) another(opts ...locker.Option) *locker.Engine {
	b.Helper()
	return lockertest.NewLocker(b.TB, b.Another(b.TB), opts...)
}

// mortal returns a Locker on s whose process will be killed, so that it cannot be closed normally.
func (b *bench) mortal(s store.Store) *locker.Engine {
	b.Helper()
	made, err := store.NewEngine(s, []locker.Option(nil))
	if err != nil {
		b.Fatal(err)
	}
	e := made.(*locker.Engine)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = e.Close(ctx)
	})
	return e
}

// hold acquires the key, which is free, through l, and returns the lease.
func (b *bench) hold(l locker.Locker) *locker.Lease {
	b.Helper()
	lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key, Wait: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	return lease
}

// end releases the lease l.
func (b *bench) end(l *locker.Lease) {
	b.Helper()
	if err := l.Release(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// wait is a call of Acquire that is under way.
type wait struct {
	b      *bench
	cancel context.CancelFunc
	ended  chan struct{} // closed when lease and err are set
	lease  *locker.Lease
	err    error
}

// begin begins a wait for the key through l. If the waiter is not served before the law ends, it
// gives up.
func (b *bench) begin(l locker.Locker) *wait {
	ctx, cancel := context.WithCancel(b.Context())
	w := &wait{b: b, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		w.lease, w.err = l.Acquire(ctx, locker.Rule{Key: b.key})
	}()
	b.Cleanup(w.giveUp)
	return w
}

// awaitLease waits until the call of Acquire has its lease, at most for limit, and returns the
// lease.
func (w *wait) awaitLease(limit time.Duration) *locker.Lease {
	w.b.Helper()
	select {
	case <-w.ended:
	case <-time.After(limit):
		w.b.Fatalf("not served within %v", limit)
	}
	if w.err != nil {
		w.b.Fatalf("acquire: %v", w.err)
	}
	return w.lease
}

// checkWaiting fails the law if the wait is over.
func (w *wait) checkWaiting() {
	w.b.Helper()
	select {
	case <-w.ended:
		w.b.Fatalf("served out of turn, or not at all: %v", w.err)
	default:
	}
}

// giveUp ends the wait.
func (w *wait) giveUp() {
	w.cancel()
	<-w.ended
}
