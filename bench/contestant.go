package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// contestant is one way to lock. A child process is told its name and opens it.
type contestant struct {
	name string
	kind kind
	// sends are the commands that its clients send besides scripts, as the server
	// names them. See load.commands.
	sends []string
	// noLock marks what only passes a message on, and cannot be tried out alone.
	noLock bool
	// redisKey is where it keeps the lock on key; nil: in key itself.
	redisKey func(key string) string
	open     func(settings) (locks, error)
}

type kind int

const (
	ours  kind = iota
	peer       // another library, which we compare ourselves with
	floor      // bare commands: what no library can do without
)

// settings are the same for all contestants of a turn.
type settings struct {
	Addr    string
	Cluster bool // Addr is that of a node; most contestants do without
	TTL     time.Duration
	Process int // which of the turn's processes this is, from 0
}

// dial makes a client, with go-redis' defaults.
func (s settings) dial() redis.UniversalClient { return s.client(false) }

// client makes a client with go-redis' defaults; bounded: that ends each call with its context.
func (s settings) client(bounded bool) redis.UniversalClient {
	if s.Cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr}, ContextTimeoutEnabled: bounded})
	}
	return redis.NewClient(&redis.Options{Addr: s.Addr, ContextTimeoutEnabled: bounded})
}

// locks is an opened contestant. It is used by all goroutines of a process.
type locks interface {
	// Lock waits until it holds key, or ctx is cancelled. Contexts have no deadline:
	// rueidislock would make it the lock's own.
	Lock(ctx context.Context, key string) (hold, error)
	Close()
}

// hold is a lock that is held. An interface that a library's own type fits costs
// no allocation, which would be counted as the library's.
type hold interface {
	Release(ctx context.Context) error
}

// runner is locks that run a function under a lock.
type runner interface {
	Run(ctx context.Context, key string, fn func()) error
}

// refresher is a hold that nobody renews unless its owner does.
type refresher interface {
	Refresh(ctx context.Context, ttl time.Duration) error
}

// fenced is a hold with a number that is larger than those of all holds before.
type fenced interface {
	Fence() uint64
}

// contestants are all there are; rows pick theirs by name.
var contestants = append(append(latchkits(), readWrites()...),
	bareFloor, pipedFloor, rueidisFloor, wakeFloor,
	redislock100ms, redislock1ms,
	redsyncDefault, redsync1ms,
	rueidislockUsual, rueidislockZero,
)

func named(name string) (contestant, error) {
	for _, c := range contestants {
		if c.name == name {
			return c, nil
		}
	}
	return contestant{}, fmt.Errorf("there is no contestant %q", name)
}

// field picks the contestants of a row, in the order in which they take turns.
func field(names ...string) []contestant {
	picked := make([]contestant, len(names))
	for i, name := range names {
		c, err := named(name)
		if err != nil {
			panic(err) // names are written in this package
		}
		picked[i] = c
	}
	return picked
}

func (c contestant) keyOnServer(key string) string {
	if c.redisKey == nil {
		return key
	}
	return c.redisKey(key)
}
