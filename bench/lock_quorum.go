package main

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// quorumContestant is a way to lock on several servers together.
type quorumContestant struct {
	name string
	open func(addrs []string, ttl time.Duration) (quorumLocks, error)
}

// quorumLocks are locks that also count their acquisitions, and those acquisitions that needed
// only one round trip.
type quorumLocks interface {
	locks
	OneRound() (oneRound, all uint64)
}

const (
	latchkitQuorum  = "latchkit Redlock"
	redsyncQuorum   = "redsync"
	redsyncFailFast = "redsync fail-fast"
)

var quorumContestants = []quorumContestant{
	{latchkitQuorum, openLatchkitQuorum},
	{redsyncQuorum, redsyncOnSeveral()},
	{redsyncFailFast, redsyncOnSeveral(redsync.WithFailFast(true))},
	{scriptVotes, openVotes},
}

func openLatchkitQuorum(addrs []string, ttl time.Duration) (quorumLocks, error) {
	l := &latchkitOnSeveral{}
	var nodes []locker.Client
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		l.clients = append(l.clients, c)
		nodes = append(nodes, c)
	}
	var err error
	l.engine, err = locker.NewRedlock(nodes, locker.WithTTL(ttl), locker.WithObserver(&l.rounds))
	return l, err
}

type latchkitOnSeveral struct {
	latchkitLocks
	rounds rounds
}

func (l *latchkitOnSeveral) OneRound() (oneRound, all uint64) {
	return l.rounds.oneRound.Load(), l.rounds.all.Load()
}

// rounds is an Observer that counts acquisitions, and those acquisitions that needed only one
// round trip.
type rounds struct{ oneRound, all atomic.Uint64 }

func (r *rounds) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	if op != locker.OpAcquire {
		return ctx, nil
	}
	return ctx, r.count
}

func (r *rounds) count(o locker.Outcome) {
	if o.Rounds > 0 {
		r.all.Add(1)
	}
	if o.Rounds == 1 {
		r.oneRound.Add(1)
	}
}

func redsyncOnSeveral(options ...redsync.Option) func([]string, time.Duration) (quorumLocks, error) {
	return func(addrs []string, ttl time.Duration) (quorumLocks, error) {
		l := &redsyncQuorumLocks{options: append(options, redsync.WithTries(math.MaxInt32), redsync.WithExpiry(ttl))}
		var pools []redsyncredis.Pool
		for _, addr := range addrs {
			c := redis.NewClient(&redis.Options{Addr: addr})
			l.clients = append(l.clients, c)
			pools = append(pools, goredis.NewPool(c))
		}
		l.sync = redsync.New(pools...)
		return l, nil
	}
}

type redsyncQuorumLocks struct {
	clients  []*redis.Client
	sync     *redsync.Redsync
	options  []redsync.Option
	acquired uint64
}

func (r *redsyncQuorumLocks) Lock(ctx context.Context, key string) (hold, error) {
	mutex := r.sync.NewMutex(key, r.options...)
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	r.acquired++
	return redsyncHold{mutex}, nil
}

// OneRound returns the number of all acquisitions as both results, because without a fence each
// acquisition needs only one round trip.
func (r *redsyncQuorumLocks) OneRound() (oneRound, all uint64) { return r.acquired, r.acquired }

func (r *redsyncQuorumLocks) Close() {
	for _, c := range r.clients {
		_ = c.Close()
	}
}
