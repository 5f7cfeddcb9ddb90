package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

const (
	latchkit     = "latchkit"
	latchkitFair = "latchkit WithFair"

	latchkitPlain = "latchkit, default client"

	latchkitScriptless = "latchkit NewScriptless"
)

// variant is one way to use latchkit: its fields choose the client, the calls and the options.
type variant struct {
	name    string
	plain   bool // the service makes the client, with go-redis' default options; otherwise Open makes it, as in the README
	options []locker.SingleOption
}

var variants = []variant{
	{name: latchkit},
	{name: latchkitFair, options: []locker.SingleOption{locker.WithFair()}},
	{name: latchkitPlain, plain: true},
}

// withoutScripts is for servers that forbid scripts. Its locks have no fence and no queue.
var withoutScripts = contestant{
	name: latchkitScriptless, kind: ours, sends: []string{"set", "watch", "get", "pttl", "exists", "multi", "del", "exec", "unwatch"},
	uncounted: []string{"delex", "delifeq"}, // tried once; a server does not count the commands that it lacks
	open: func(s settings) (locks, error) {
		c := s.client(true)
		e, err := locker.NewScriptless(c, locker.WithTTL(s.TTL))
		return &latchkitLocks{engine: e, clients: []redis.UniversalClient{c}}, err
	},
}

func latchkits() []contestant {
	all := make([]contestant, len(variants))
	for i, v := range variants {
		all[i] = contestant{name: v.name, kind: ours, open: v.open}
	}
	return all
}

func (v variant) open(s settings) (locks, error) {
	options := append([]locker.SingleOption{locker.WithTTL(s.TTL)}, v.options...)
	l := &latchkitLocks{}
	var err error
	if v.plain {
		c := s.dial()
		l.clients = []redis.UniversalClient{c}
		l.engine, err = locker.New(c, options...)
	} else {
		l.engine, err = locker.Open(&redis.Options{Addr: s.Addr}, options...)
	}
	return l, err
}

type latchkitLocks struct {
	engine  *locker.Engine
	clients []redis.UniversalClient
}

// Lock returns a hold that is renewed and has a fence, as by default.
func (l *latchkitLocks) Lock(ctx context.Context, key string) (hold, error) {
	lease, err := l.engine.Acquire(ctx, locker.Rule{Key: key})
	if err != nil {
		return nil, err // not lease, because a hold that contains a nil *Lease is not nil
	}
	return lease, nil
}

func (l *latchkitLocks) Close() {
	_ = l.engine.Close(context.Background()) // no lease is held, so Close has nothing to wait for
	for _, c := range l.clients {
		_ = c.Close()
	}
}
