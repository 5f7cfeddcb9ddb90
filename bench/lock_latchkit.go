package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

const (
	latchkit     = "latchkit"
	latchkitFair = "latchkit WithFair"
)

// variant is latchkit with the options that make it fast at something. Whatever
// speeds up a row is switched on here.
type variant struct {
	name    string
	options func(dial func() redis.UniversalClient) []locker.SingleOption // nil: none. dial makes another client of the same server
}

var variants = []variant{
	{name: latchkit},
	{name: latchkitFair, options: func(func() redis.UniversalClient) []locker.SingleOption {
		return []locker.SingleOption{locker.WithFair()}
	}},
}

func latchkits() []contestant {
	all := make([]contestant, len(variants))
	for i, v := range variants {
		all[i] = contestant{name: v.name, kind: ours, open: v.open}
	}
	return all
}

func (v variant) open(s settings) (locks, error) {
	l := &latchkitLocks{}
	dial := func() redis.UniversalClient {
		c := s.dial()
		l.clients = append(l.clients, c)
		return c
	}
	options := []locker.SingleOption{locker.WithTTL(s.TTL)}
	if v.options != nil {
		options = append(options, v.options(dial)...)
	}
	var err error
	l.engine, err = locker.NewSingle(dial(), options...)
	return l, err
}

type latchkitLocks struct {
	engine  *locker.Engine
	clients []redis.UniversalClient
}

// Lock's holds are renewed and have a fence, as by default.
func (l *latchkitLocks) Lock(ctx context.Context, key string) (hold, error) {
	lease, err := l.engine.Acquire(ctx, locker.Rule{Key: key})
	if err != nil {
		return nil, err // not a nil lease in an interface that is not nil
	}
	return lease, nil
}

func (l *latchkitLocks) Close() {
	_ = l.engine.Close(context.Background()) // nothing is held any more
	for _, c := range l.clients {
		_ = c.Close()
	}
}
