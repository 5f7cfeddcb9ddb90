package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// ttl is the same for all, and longer than any turn: nothing is renewed.
const ttl = 30 * time.Second

// contestant is one way to lock.
type contestant struct {
	name  string
	fence bool // does the holder get a number that only grows?
	key   string
	once  func(ctx context.Context) error // acquire and release key
}

// contestants are all of them, the floor first: the others are measured by it.
func contestants(client func() *redis.Client) ([]contestant, error) {
	l, err := locker.NewSingle(client(), locker.WithTTL(ttl))
	if err != nil {
		return nil, err
	}
	return []contestant{
		floor(client()),
		latchkit(l),
		bsmRedislock(redislock.New(client())),
		goRedsync(redsync.New(goredis.NewPool(client()))),
	}, nil
}

var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

func floor(c *redis.Client) contestant {
	const key, token = "bench:floor", "0123456789abcdef"
	return contestant{name: "floor: SET NX PX, compare-and-delete", key: key, once: func(ctx context.Context) error {
		if err := c.SetArgs(ctx, key, token, redis.SetArgs{Mode: "NX", TTL: ttl}).Err(); err != nil {
			return err
		}
		if n, err := compareAndDelete.Run(ctx, c, []string{key}, token).Int(); err != nil || n != 1 {
			return errors.Join(errors.New("the floor's key was not deleted"), err)
		}
		return nil
	}}
}

func latchkit(l locker.Locker) contestant {
	rule := locker.Rule{Key: "bench:latchkit"}
	return contestant{name: "latchkit NewSingle", fence: true, key: rule.Key, once: func(ctx context.Context) error {
		lease, err := l.Acquire(ctx, rule)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}}
}

func bsmRedislock(c *redislock.Client) contestant {
	const key = "bench:redislock"
	return contestant{name: "bsm/redislock", key: key, once: func(ctx context.Context) error {
		lock, err := c.Obtain(ctx, key, ttl, nil)
		if err != nil {
			return err
		}
		return lock.Release(ctx)
	}}
}

func goRedsync(r *redsync.Redsync) contestant {
	const key = "bench:redsync"
	return contestant{name: "go-redsync/redsync", key: key, once: func(ctx context.Context) error {
		mutex := r.NewMutex(key, redsync.WithExpiry(ttl))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		_, err := mutex.UnlockContext(ctx)
		return err
	}}
}
