package lockertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// lockerLaws are what a Locker over the Store promises to its users.
var lockerLaws = []law{
	{says: "Run excludes", check: func(b *bench) {
		l := b.locker()
		counter := 0
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					if err := locker.Run(b.Context(), l, locker.Rule{Key: b.key}, func(context.Context) error {
						counter++ // the race detector watches
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
	{says: "a lost answer of an acquire is not busy", needs: losesReplies, check: func(b *bench) {
		l := b.locker()
		b.LoseReply(b.TB, locker.OpAcquire, b.key)
		_, err := l.Acquire(b.Context(), locker.Rule{Key: b.key, Wait: locker.NoWait})
		if !errors.Is(err, locker.ErrUnavailable) || errors.Is(err, locker.ErrBusy) {
			b.Fatalf("%v, want ErrUnavailable", err)
		}
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key, Wait: 10 * time.Second})
		if err != nil {
			b.Fatalf("the abandoned acquire was not undone: %v", err)
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}},
	{says: "a lost answer of an acquire that may wait is a grant", needs: losesReplies, check: func(b *bench) {
		l := b.locker()
		b.LoseReply(b.TB, locker.OpAcquire, b.key)
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key, Wait: 10 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}},
	{says: "a lost answer of a release is not a loss", needs: losesReplies, check: func(b *bench) {
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
	{says: "a lease that was taken away is a loss", needs: breaks, check: func(b *bench) {
		l := b.locker()
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Break(b.Context(), b.key, lease.Fence(), "drill"); err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(b.Context()); !errors.Is(err, locker.ErrRevoked) || !errors.Is(err, locker.ErrLost) {
			b.Fatalf("release: %v, want ErrRevoked", err)
		}
		if err := l.Break(b.Context(), b.key, lease.Fence(), "drill"); !errors.Is(err, locker.ErrGone) {
			b.Fatalf("second break: %v, want ErrGone", err)
		}
	}},
	{says: "a lease is renewed as long as it is held", check: func(b *bench) {
		l := b.locker()
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key, TTL: 2 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		first := lease.Expires()
		b.eventually(10*time.Second, "two leases' time passed", func() bool { return time.Now().After(first.Add(2 * time.Second)) })
		if lease.Context().Err() != nil {
			b.Fatal(context.Cause(lease.Context()))
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}},
	{says: "release with a cancelled context releases", check: func(b *bench) {
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
		b.granted()
	}},
}
