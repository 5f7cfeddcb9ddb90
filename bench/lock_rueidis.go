package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislock is measured with the settings of its README for one server. With its default settings,
// a lock takes two of three keys. The server's invalidations wake its waiters. It pipelines the commands
// of all goroutines.
//
// If an acquire takes longer than TryNextAfter, rueidislock gives up the attempt and waits for an
// invalidation. But if the key is free, the server sends no invalidation, so rueidislock waits
// in vain. The default of 20 ms is too short on a busy machine: whole turns would pass without
// a lock. So the bench sets TryNextAfter to one second.
var rueidislockUsual = withRueidislock("rueidislock",
	rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: true, TryNextAfter: time.Second})

func withRueidislock(name string, option rueidislock.LockerOption) contestant {
	const prefix = "rueidislock"
	return contestant{
		name: name, kind: peer,
		redisKey: func(key string) string { return prefix + ":0:" + key },
		open: func(s settings) (locks, error) {
			option := option
			option.KeyPrefix = prefix
			option.KeyValidity = s.TTL
			option.ClientOption = rueidis.ClientOption{InitAddress: []string{s.Addr}}
			l, err := rueidislock.NewLocker(option)
			if err != nil {
				return nil, err
			}
			return rueidislockLocks{l}, nil
		},
	}
}

type rueidislockLocks struct{ rueidislock.Locker }

func (r rueidislockLocks) Lock(ctx context.Context, key string) (hold, error) {
	held, cancel, err := r.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return &rueidislockHold{held, cancel}, nil
}

type rueidislockHold struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// Release returns when the key is deleted. It returns an error if the lock was already lost. If
// the deletion fails, rueidislock does not return the error.
func (h *rueidislockHold) Release(context.Context) error {
	err := h.ctx.Err()
	h.cancel()
	return err
}
