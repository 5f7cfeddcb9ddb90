package asynqlock

import (
	"sync"
	"time"
)

// serverClock translates this process' monotonic time into the time of asynq's Redis, in µs. The
// translation is strictly increasing, so deliveries of one process keep their order. Deliveries of
// different processes may be in the wrong order only if the time between them is less than the
// server's response time.
type serverClock struct {
	mu         sync.Mutex
	current    translation
	previous   translation // translates the times before `current.from`
	validUntil time.Time   // after this time, the server's time is read again, because clocks drift
}

// translation translates times of this process into times of the server. It is made from one reply
// of the server. It is valid for the time in its field from, and for later times.
type translation struct {
	from   time.Time
	epoch  time.Time
	server int64 // the server's time at epoch
	least  int64 // what the previous translation returned for the time from; 0: there was none
}

// remeasureAfter is how long a translation is used before the server's time is read again.
const remeasureAfter = time.Minute

// mustRead reports whether the server's time must be read at the time now, because it is unknown or
// was read too long ago.
func (c *serverClock) mustRead(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !now.Before(c.validUntil)
}

// observe makes a translation from a reply of the server. server is the time in the reply. sent is
// the time at which the request was sent, and received the time at which the reply arrived.
func (c *serverClock) observe(server int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if received.Before(c.validUntil) {
		return // the reply to another request has set the translation already
	}
	next := translation{from: received, epoch: sent.Add(received.Sub(sent) / 2), server: server}
	if c.validUntil.IsZero() {
		next.from = time.Time{}
	} else {
		next.least = c.current.serverTime(received)
	}
	c.previous, c.current, c.validUntil = c.current, next, received.Add(remeasureAfter)
}

// serverTime returns the server's time at t.
func (c *serverClock) serverTime(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.Before(c.current.from) {
		return c.previous.serverTime(t)
	}
	return c.current.serverTime(t)
}

// serverTime returns the server's time at t. If the previous translation was ahead, the returned
// time runs at half speed until the difference is gone. So the returned time never goes back.
func (tr translation) serverTime(t time.Time) int64 {
	at := tr.server + t.Sub(tr.epoch).Microseconds()
	if tr.least == 0 {
		return at
	}
	return max(at, tr.least+t.Sub(tr.from).Microseconds()/2)
}
