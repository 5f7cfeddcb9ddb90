package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

const (
	latchkitReaders     = "latchkit read-write"
	latchkitLoneReaders = "latchkit read-write, one hold per reader"
)

// readLocks are locks that several readers may hold together.
type readLocks interface {
	locks
	// RLock does the work of Lock for readers.
	RLock(ctx context.Context, key string) (hold, error)
}

// readWrites returns the contestants with readers. In the first contestant, the readers of a
// process share a hold, as they do by default. In the second one, each reader has a hold of its
// own.
func readWrites() []contestant {
	open := func(options ...locker.SingleOption) func(settings) (locks, error) {
		return func(s settings) (locks, error) {
			c := redis.NewClient(&redis.Options{Addr: s.Addr, ContextTimeoutEnabled: true})
			e, err := locker.NewReadWrite(c, append(options, locker.WithTTL(s.TTL))...)
			return &readWriteLocks{latchkitLocks{engine: e, clients: []redis.UniversalClient{c}}}, err
		}
	}
	return []contestant{
		{name: latchkitReaders, kind: ours, open: open()},
		{name: latchkitLoneReaders, kind: ours, open: open(locker.WithFair())},
	}
}

type readWriteLocks struct{ latchkitLocks }

// RLock holds the key in the mode Shared.
func (l *readWriteLocks) RLock(ctx context.Context, key string) (hold, error) {
	lease, err := l.engine.Acquire(ctx, locker.Rule{Key: key, Mode: locker.Shared})
	if err != nil {
		return nil, err
	}
	return lease, nil
}
