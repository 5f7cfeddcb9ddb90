package asynqlock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lookups checks whether lines have tasks. Each delivery of a guarded task needs one check. Checks
// that arrive during another check are sent together. So with many workers, many checks share one
// round trip.
type lookups struct {
	mu      sync.Mutex
	waiting []*lookup
	sending bool
}

type lookup struct {
	line   string
	answer chan bool
}

// exists reports whether the line with this Redis key has tasks. If no answer comes in time, exists
// returns false; then tasks may run in a wrong order.
func (s *lookups) exists(ctx context.Context, c redis.UniversalClient, line string) bool {
	l := &lookup{line, make(chan bool, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, l)
	if !s.sending {
		s.sending = true
		go s.send(c)
	}
	s.mu.Unlock()
	timer := time.NewTimer(lineBound)
	defer timer.Stop()
	select {
	case there := <-l.answer:
		return there
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

// send sends the waiting checks until no check waits any more.
func (s *lookups) send(c redis.UniversalClient) {
	for {
		s.mu.Lock()
		batch := s.waiting
		s.waiting = nil
		s.sending = len(batch) > 0
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), lineBound)
		answers := make([]*redis.IntCmd, len(batch))
		_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error { // the error is ignored, because each answer has an error of its own
			for i, l := range batch {
				answers[i] = p.Exists(ctx, l.line)
			}
			return nil
		})
		cancel()
		for i, l := range batch {
			l.answer <- answers[i].Val() > 0
		}
	}
}
