package main

import (
	"github.com/redis/rueidis"

	"github.com/latchkit/latchkit/contrib/rueidisclient"
	"github.com/latchkit/latchkit/locker"
)

// latchkitOnRueidis is latchkit with a client of rueidis. All callers share the client's
// connections.
const latchkitOnRueidis = "latchkit on rueidis"

var throughRueidis = contestant{name: latchkitOnRueidis, kind: ours, open: func(s settings) (locks, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, DisableCache: true})
	if err != nil {
		return nil, err
	}
	client, err := rueidisclient.New(c)
	if err != nil {
		return nil, err
	}
	engine, err := locker.New(client, locker.WithTTL(s.TTL))
	if err != nil {
		return nil, err
	}
	return rueidisClientLocks{&latchkitLocks{engine: engine}, c}, nil
}}

// rueidisClientLocks are latchkit's locks, and a client of rueidis that Close closes too.
type rueidisClientLocks struct {
	*latchkitLocks
	client rueidis.Client
}

func (l rueidisClientLocks) Close() {
	l.latchkitLocks.Close()
	l.client.Close()
}
