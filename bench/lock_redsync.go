package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// By default, redsync retries after a random time of 50 to 250 ms.
var (
	redsyncDefault = goRedsync("redsync")
	redsync1ms     = goRedsync("redsync 1ms", redsync.WithRetryDelay(time.Millisecond))
)

func goRedsync(name string, options ...redsync.Option) contestant {
	// By default, redsync gives up after 32 tries. The wait of a worker that gives up would be
	// missing in the results.
	options = append(options, redsync.WithTries(math.MaxInt32))
	return contestant{name: name, kind: peer, sends: []string{"set"}, open: func(s settings) (locks, error) {
		c := redis.NewClient(&redis.Options{Addr: s.Addr})
		return redsyncLocks{c, redsync.New(goredis.NewPool(c)), append(options, redsync.WithExpiry(s.TTL))}, nil
	}}
}

type redsyncLocks struct {
	client  *redis.Client
	sync    *redsync.Redsync
	options []redsync.Option
}

func (r redsyncLocks) Lock(ctx context.Context, key string) (hold, error) {
	mutex := r.sync.NewMutex(key, r.options...)
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncHold{mutex}, nil
}

func (r redsyncLocks) Close() { _ = r.client.Close() }

// redsyncHold is one pointer, so that an interface can hold it without an allocation.
type redsyncHold struct{ *redsync.Mutex }

var errRedsync = errors.New("redsync did not confirm the release")

func (h redsyncHold) Release(ctx context.Context) error { return checkOK(h.UnlockContext(ctx)) }

// Refresh extends the lock by the TTL with which the mutex was made.
func (h redsyncHold) Refresh(ctx context.Context, _ time.Duration) error {
	return checkOK(h.ExtendContext(ctx))
}

// checkOK returns err, or an error if ok is false.
func checkOK(ok bool, err error) error {
	if err == nil && !ok {
		return errRedsync
	}
	return err
}
