package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// bsm/redislock retries only with a RetryStrategy. The bench uses two: a retry after 100 ms, as in
// the README of redislock, and a retry after 1 ms, which suits short waits.
var (
	redislock100ms = bsmRedislock("redislock 100ms", 100*time.Millisecond)
	redislock1ms   = bsmRedislock("redislock 1ms", time.Millisecond)
)

func bsmRedislock(name string, retry time.Duration) contestant {
	return contestant{name: name, kind: peer, open: func(s settings) (locks, error) {
		c := redis.NewClient(&redis.Options{Addr: s.Addr})
		options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}
		return redislockLocks{c, redislock.New(c), s.TTL, options}, nil
	}}
}

type redislockLocks struct {
	client  *redis.Client
	locks   *redislock.Client
	ttl     time.Duration
	options *redislock.Options
}

// Lock gives Obtain a deadline, because without a deadline Obtain waits for at most one TTL.
// The deadline adds no cost: without it, Obtain would make a deadline itself.
func (r redislockLocks) Lock(ctx context.Context, key string) (hold, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	lock, err := r.locks.Obtain(ctx, key, r.ttl, r.options)
	if err != nil {
		return nil, err
	}
	return redislockHold{lock}, nil
}

func (r redislockLocks) Close() { _ = r.client.Close() }

// redislockHold is one pointer, so that an interface can hold it without an allocation.
type redislockHold struct{ *redislock.Lock }

func (h redislockHold) Refresh(ctx context.Context, ttl time.Duration) error {
	return h.Lock.Refresh(ctx, ttl, nil)
}
