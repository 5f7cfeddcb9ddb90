package asynqlock

import (
	"sync"
	"time"
)

// serverClock translates this process' monotonic time into the time of asynq's Redis, in µs. The
// translation is strictly increasing, so deliveries of one process keep their order. Between
// processes the order is as exact as an answer of the server is fast.
type serverClock struct {
	mu     sync.Mutex
	now    translation
	before translation // of times before now.from
	until  time.Time   // then the server is asked anew: clocks drift
}

// translation is one answer of the server, used for times from from on.
type translation struct {
	from   time.Time
	epoch  time.Time
	server int64 // the server's time at epoch
	least  int64 // what the translation before this one made of from; 0 when there was none
}

// remeasureAfter is how long an answer is used.
const remeasureAfter = time.Minute

// needed reports whether the server's time is not known, or was asked for too long ago.
func (c *serverClock) needed(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !now.Before(c.until)
}

// observe takes an answer that the server gave at its time server, to a question of sent until
// received.
func (c *serverClock) observe(server int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if received.Before(c.until) {
		return // another answer came first
	}
	next := translation{from: received, epoch: sent.Add(received.Sub(sent) / 2), server: server}
	if c.until.IsZero() {
		next.from = time.Time{}
	} else {
		next.least = c.now.at(received)
	}
	c.before, c.now, c.until = c.now, next, received.Add(remeasureAfter)
}

// at returns the server's time at t.
func (c *serverClock) at(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.Before(c.now.from) {
		return c.before.at(t)
	}
	return c.now.at(t)
}

// at returns the server's time at t. Where it would go back behind the translation before, it goes
// on at half the speed until the difference is made up.
func (tr translation) at(t time.Time) int64 {
	at := tr.server + t.Sub(tr.epoch).Microseconds()
	if tr.least == 0 {
		return at
	}
	return max(at, tr.least+t.Sub(tr.from).Microseconds()/2)
}
