package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// twoPings is not a lock: its acquire is a PING, and so is its release. No lock that waits for both
// answers can be faster.
var twoPings = contestant{name: "two pings", kind: floor, noLock: true, open: func(s settings) (locks, error) {
	return pings{redis.NewClient(&redis.Options{Addr: s.Addr})}, nil
}}

type pings struct{ client *redis.Client }

func (p pings) Lock(ctx context.Context, _ string) (hold, error) { return p, p.client.Ping(ctx).Err() }
func (p pings) Release(ctx context.Context) error                { return p.client.Ping(ctx).Err() }
func (p pings) Close()                                           { _ = p.client.Close() }
