package main

import (
	"context"
	"time"

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

// quorumPings is not a lock on several servers: its acquire sends a PING to each server together,
// and returns with the answer that makes a majority.
var quorumPings = quorumContestant{"five pings", func(addrs []string, _ time.Duration) (quorumLocks, error) {
	f := &fivePings{}
	for _, addr := range addrs {
		f.clients = append(f.clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	return f, nil
}}

type fivePings struct {
	clients []*redis.Client
	rounds  uint64
}

func (f *fivePings) Lock(ctx context.Context, _ string) (hold, error) {
	answers := make(chan error, len(f.clients))
	for _, c := range f.clients {
		go func() { answers <- c.Ping(ctx).Err() }()
	}
	for range len(f.clients)/2 + 1 {
		if err := <-answers; err != nil {
			return nil, err
		}
	}
	f.rounds++
	return f, nil
}

// Release does nothing.
func (f *fivePings) Release(context.Context) error { return nil }

// OneRound implements quorumLocks.
func (f *fivePings) OneRound() (oneRound, all uint64) { return f.rounds, f.rounds }

func (f *fivePings) Close() {
	for _, c := range f.clients {
		_ = c.Close()
	}
}
