package foreign

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/polling"
)

func TestPollingAndRedsyncExcludeEachOther(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	l := newPolling(t, server)
	const key = "redsync:both"
	mutex := redsync.New(goredis.NewPool(server.Client(t))).NewMutex(key, redsync.WithTries(1), redsync.WithExpiry(time.Minute))

	if err := mutex.LockContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait}); err == nil {
		t.Fatal("we got the key that redsync holds")
	}
	if ok, err := mutex.ExtendContext(t.Context()); !ok || err != nil {
		t.Fatalf("its lock was disturbed: %v %v", ok, err)
	}
	if ok, err := mutex.UnlockContext(t.Context()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	lease, err := l.Acquire(t.Context(), locker.Rule{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if err := mutex.LockContext(t.Context()); err == nil {
		t.Fatal("redsync got the key that we hold")
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := mutex.LockContext(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestPollingRedislockAndRedsyncCountTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	const key, each = "redsync:count", 20
	theirs, sync1 := redislock.New(server.Client(t)), redsync.New(goredis.NewPool(server.Client(t)))
	counter, inside := 0, new(atomic.Int32)
	visit := func(context.Context) error {
		if inside.Add(1) != 1 {
			t.Error("two are inside")
		}
		counter++ // no mutex guards the counter, so the race detector finds two holders
		<-time.After(time.Millisecond)
		inside.Add(-1)
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for _, run := range []func() error{
		func() error { return locker.Run(ctx, newPolling(t, server), locker.Rule{Key: key}, visit) },
		func() error {
			lock, err := theirs.Obtain(ctx, key, 30*time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(3 * time.Millisecond)})
			if err != nil {
				return err
			}
			_ = visit(ctx)
			return lock.Release(ctx)
		},
		func() error {
			m := sync1.NewMutex(key, redsync.WithTries(1<<30), redsync.WithRetryDelay(3*time.Millisecond), redsync.WithExpiry(30*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			_ = visit(ctx)
			_, err := m.UnlockContext(ctx)
			return err
		},
	} {
		for range 2 {
			wg.Go(func() {
				for range each {
					if err := run(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if counter != 6*each {
		t.Errorf("%d of %d visits counted", counter, 6*each)
	}
}

func newPolling(t *testing.T, server *redistest.Server) *locker.Engine {
	t.Helper()
	l, err := polling.New(redislock.New(server.Client(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}
