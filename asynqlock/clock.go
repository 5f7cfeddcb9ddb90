package asynqlock

import (
	"sync"
	"time"
)

// serverClock translates this process' monotonic time into the time of asynq's Redis, in µs. All
// deliveries of a process are translated alike, so their order is exact; between processes it is as
// exact as an answer of the server is fast.
type serverClock struct {
	mu     sync.Mutex
	epoch  time.Time
	offset int64     // of the server's clock at epoch
	until  time.Time // then the offset is measured anew: clocks drift
}

// remeasureAfter is how long an offset is used.
const remeasureAfter = time.Minute

// needed says whether the offset is not known, or old.
func (c *serverClock) needed(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !now.Before(c.until)
}

// observe sets the offset by an answer that the server gave at its time server, to a question of
// sent until received.
func (c *serverClock) observe(server int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if received.Before(c.until) {
		return // another answer came first
	}
	c.epoch, c.offset, c.until = sent.Add(received.Sub(sent)/2), server, received.Add(remeasureAfter)
}

// at is the server's time at t.
func (c *serverClock) at(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset + t.Sub(c.epoch).Microseconds()
}
