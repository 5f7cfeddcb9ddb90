package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// bareFloor sends only what every lock on Redis needs: SET NX PX, and a script that deletes the
// key if the key is ours. bareFloor does not wait, renews nothing, and uses one token for all
// locks. So it is only for keys that no other caller wants.
var bareFloor = contestant{name: "floor", kind: floor, sends: []string{"set"}, open: func(s settings) (locks, error) {
	c := s.dial()
	return floorLocks{c, s.TTL, func() { _ = c.Close() }}, nil
}}

const floorToken = "0123456789abcdef"

const compareAndDeleteText = `
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`

var (
	compareAndDelete = redis.NewScript(compareAndDeleteText)

	errNotDeleted = errors.New("the key was not deleted")
)

type floorLocks struct {
	client redis.UniversalClient
	ttl    time.Duration
	close  func()
}

func (f floorLocks) Lock(ctx context.Context, key string) (hold, error) {
	if err := f.client.SetArgs(ctx, key, floorToken, redis.SetArgs{Mode: "NX", TTL: f.ttl}).Err(); err != nil {
		return nil, err
	}
	return &floorHold{f.client, key}, nil
}

func (f floorLocks) Close() { f.close() }

type floorHold struct {
	client redis.UniversalClient
	key    string
}

func (h *floorHold) Release(ctx context.Context) error {
	n, err := compareAndDelete.Run(ctx, h.client, []string{h.key}, floorToken).Int()
	if err == nil && n != 1 {
		return errNotDeleted
	}
	return err
}
