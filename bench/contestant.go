package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// contestant is one library, or one configuration of a library, that the bench measures. A
// child process gets the contestant's name and opens the contestant.
type contestant struct {
	name string
	kind kind
	// sends are the commands that the clients of the contestant send in addition to scripts.
	// They are listed by the names that the server uses: see load.commands.
	sends []string
	// uncounted are the commands that the library sends for other purposes than locks. The bench
	// does not count them.
	uncounted []string
	// noLock marks a contestant that is not tested as a lock: it only passes messages, or cannot
	// wait again after a wait that was cut off.
	noLock bool
	// admits marks a contestant that may have several holders at once: a counter without a lock.
	admits bool
	// redisKey returns the Redis key of the lock on the given key. If redisKey is nil, the
	// Redis key is the given key.
	redisKey func(key string) string
	open     func(settings) (locks, error)
}

type kind int

const (
	ours  kind = iota
	peer       // a lock of another library
	floor      // the commands that every lock needs, without a library
)

// settings are the same for all contestants of a turn.
type settings struct {
	Addr    string
	TTL     time.Duration
	Process int // the index of this process among the processes of the turn
}

// dial makes a client with go-redis' default options.
func (s settings) dial() redis.UniversalClient { return s.client(false) }

// client makes a client with go-redis' default options. If bounded is true, each call ends with
// its context.
func (s settings) client(bounded bool) redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: s.Addr, ContextTimeoutEnabled: bounded})
}

// locks is an open contestant. All goroutines of a process share it.
type locks interface {
	// Lock waits until the caller holds key, or until ctx is cancelled. ctx has no deadline,
	// because rueidislock would end the lock at the deadline.
	Lock(ctx context.Context, key string) (hold, error)
	Close()
}

// hold is one held lock. A library's own type implements this interface, so that the bench adds no
// allocations to the library's figures.
type hold interface {
	Release(ctx context.Context) error
}

// runner is a contestant that runs a function under a lock.
type runner interface {
	Run(ctx context.Context, key string, fn func()) error
}

// refresher is a hold that is renewed only when its owner calls Refresh.
type refresher interface {
	Refresh(ctx context.Context, ttl time.Duration) error
}

// fenced is a hold with a number that is larger than the number of every earlier hold.
type fenced interface {
	Fence() uint64
}

// contestants lists all contestants of the bench. A row uses some of these contestants, and
// selects them by name.
var contestants = append(append(append(latchkits(), readWrites()...), scriptFloors...),
	bareFloor, wakeFloor, twoPings,
	redislock100ms, redislock1ms,
	redsyncDefault, redsync1ms,
	rueidislockUsual,
	updateOptimistic, updateLocked, updateIncr,
	withoutScripts,
)

// contestantNamed returns the contestant with this name.
func contestantNamed(name string) (contestant, error) {
	for _, c := range contestants {
		if c.name == name {
			return c, nil
		}
	}
	return contestant{}, fmt.Errorf("there is no contestant %q", name)
}

// contestantsNamed returns the contestants with these names: those of a row, in the order of their
// turns.
func contestantsNamed(names ...string) []contestant {
	picked := make([]contestant, len(names))
	for i, name := range names {
		c, err := contestantNamed(name)
		if err != nil {
			panic(err) // a wrong name is a mistake in this package
		}
		picked[i] = c
	}
	return picked
}

// keyOnServer returns the Redis key of the contestant's lock on key.
func (c contestant) keyOnServer(key string) string {
	if c.redisKey == nil {
		return key
	}
	return c.redisKey(key)
}
