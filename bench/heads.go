package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// units is the specification of a process whose callers want units of one semaphore.
type units struct {
	Settings settings
	Callers  int
	Weight   int
}

const unitsKey = "units"

// unitsPart acquires units for all callers at the same time. It reports when each caller got its
// units, and keeps the units until the parent sends a word. When this word arrives, callers
// that still wait give up.
func unitsPart(s *stage) error {
	var u units
	if err := s.read(&u); err != nil {
		return err
	}
	c := redis.NewClient(&redis.Options{Addr: u.Settings.Addr})
	e, err := locker.NewSemaphore(c, mostPermits, locker.WithTTL(u.Settings.TTL))
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	leases, had := make([]*locker.Lease, u.Callers), make([]time.Duration, u.Callers)
	waiting := make(chan error, 1)
	go func() {
		waiting <- together(u.Callers, func(i int) (err error) {
			if leases[i], err = e.Acquire(ctx, locker.Rule{Key: unitsKey, Weight: u.Weight}); err == nil {
				had[i] = monotonic()
			}
			return err
		})
	}()
	told := make(chan string, 1)
	go func() { told <- s.await() }()
	select {
	case err := <-waiting:
		if err != nil {
			return err
		}
		s.say("had", had)
		<-told
		leave()
		for _, lease := range leases {
			if err := lease.Release(context.Background()); err != nil {
				return err
			}
		}
	case <-told:
		leave()
		<-waiting //nolint:errcheck // each caller has given up, so its error has no meaning
	}
	return e.Close(context.Background())
}
