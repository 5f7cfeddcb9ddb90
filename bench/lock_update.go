package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/optimistic"
)

// These contestants are three ways to count in Redis. Each contestant adds one to a number: by an
// optimistic update, under a lock, or with INCR.
var (
	// The field sends has the commands whose counts are added up. The server does not count a SET
	// that EXEC refuses, but each such SET comes with one MULTI. So sends lists MULTI a second time
	// instead of SET.
	updateOptimistic = contestant{name: "latchkit Update", kind: ours, admits: true, sends: []string{"watch", "get", "multi", "multi", "exec", "unwatch"}, open: func(s settings) (locks, error) {
		c := s.client(true)
		return countingLocks{c, func(ctx context.Context, key string) error {
			return optimistic.Update(ctx, c, key, addOne, optimistic.WithAttempts(1_000_000))
		}, func() {}}, nil
	}}
	updateLocked = contestant{name: "latchkit lock", kind: ours, admits: true, sends: []string{"hget", "hset"}, open: func(s settings) (locks, error) {
		c := s.client(true)
		l, err := locker.New(c, locker.WithTTL(s.TTL))
		return countingLocks{c, func(ctx context.Context, key string) error {
			return locker.Run(ctx, l, locker.Rule{Key: "lock:" + key}, func(ctx context.Context) error {
				// No script of the lock uses HGET or HSET. So the server's counts of HGET and
				// HSET are exactly the commands that this contestant sends.
				old, err := c.HGet(ctx, key, "n").Bytes()
				if err != nil && !errors.Is(err, redis.Nil) {
					return err
				}
				value, err := addOne(ctx, old)
				if err != nil {
					return err
				}
				return c.HSet(ctx, key, "n", value).Err()
			})
		}, func() { _ = l.Close(context.Background()) }}, err
	}}
	updateIncr = contestant{name: "INCR", kind: floor, admits: true, sends: []string{"incr"}, open: func(s settings) (locks, error) {
		c := s.client(true)
		return countingLocks{c, func(ctx context.Context, key string) error { return c.Incr(ctx, key).Err() }, func() {}}, nil
	}}
)

func addOne(_ context.Context, old []byte) ([]byte, error) {
	if old == nil {
		return []byte("1"), nil
	}
	n, err := strconv.Atoi(string(old))
	return strconv.AppendInt(nil, int64(n+1), 10), err
}

// countingLocks are for contestants that add one to a number in each call of Run. If a
// contestant needs a lock, its method count takes the lock.
type countingLocks struct {
	client redis.UniversalClient
	count  func(ctx context.Context, key string) error
	end    func()
}

// Run implements runner.
func (c countingLocks) Run(ctx context.Context, key string, fn func()) error {
	err := c.count(ctx, key)
	fn()
	return err
}

// Lock is called only before the measurement, to open connections.
func (c countingLocks) Lock(ctx context.Context, key string) (hold, error) {
	return countedHold{}, c.count(ctx, key)
}

func (c countingLocks) Close() {
	c.end()
	_ = c.client.Close()
}

type countedHold struct{}

func (countedHold) Release(context.Context) error { return nil }
