package main

import (
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

const (
	mostPermits   = 50
	semaphore     = "latchkit NewSemaphore"
	semaphoreFair = "latchkit NewSemaphore WithFair"
)

var semaphores = []contestant{permits(semaphore), permits(semaphoreFair, locker.WithFair())}

// permits returns a contestant with this name, which locks with latchkit's semaphore. Each
// caller takes one permit.
func permits(name string, options ...locker.SingleOption) contestant {
	return contestant{name: name, kind: ours, admits: true, open: func(s settings) (locks, error) {
		c := s.client(true)
		e, err := locker.NewSemaphore(c, mostPermits, append([]locker.SingleOption{locker.WithTTL(s.TTL)}, options...)...)
		return &latchkitLocks{engine: e, clients: []redis.UniversalClient{c}}, err
	}}
}
