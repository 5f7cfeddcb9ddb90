package main

import (
	"context"
	"strconv"
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

// rueidisFloor does the work of bareFloor through rueidis, which pipelines commands by itself.
var rueidisFloor = contestant{name: "floor-rueidis", kind: floor, sends: []string{"set"}, open: func(s settings) (locks, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, DisableCache: true})
	if err != nil {
		return nil, err
	}
	return rueidisLocks{c, s.TTL}, nil
}}

var rueidisCompareAndDelete = rueidis.NewLuaScript(compareAndDeleteText)

type rueidisLocks struct {
	client rueidis.Client
	ttl    time.Duration
}

func (r rueidisLocks) Lock(ctx context.Context, key string) (hold, error) {
	set := r.client.B().Arbitrary("SET").Keys(key).Args(floorToken, "NX", "PX", strconv.FormatInt(r.ttl.Milliseconds(), 10)).Build()
	if err := r.client.Do(ctx, set).Error(); err != nil {
		return nil, err
	}
	return &rueidisHold{r.client, key}, nil
}

func (r rueidisLocks) Close() { r.client.Close() }

type rueidisHold struct {
	client rueidis.Client
	key    string
}

func (h *rueidisHold) Release(ctx context.Context) error {
	n, err := rueidisCompareAndDelete.Exec(ctx, h.client, []string{h.key}, []string{floorToken}).AsInt64()
	if err == nil && n != 1 {
		return errNotDeleted
	}
	return err
}
