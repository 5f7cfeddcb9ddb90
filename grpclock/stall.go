package grpclock

import (
	"errors"
	"sync"
	"time"
)

// errStalled is the cause of the end of a stream whose client made no progress for too long.
var errStalled = errors.New("the client kept the stream waiting for too long while the lock was held")

// watch detects that a client blocks its stream while the stream holds a lock. A client blocks a
// stream if a Recv or a Send is pending, and no Recv or Send has returned for the time limit. The
// time in which a handler works, and does not wait for its client, does not count.
type watch struct {
	limit   time.Duration
	stalled func()

	mu      sync.Mutex
	timer   *time.Timer // nil before the lock is held, and when the handler has returned
	waiting int         // the number of Recvs and Sends under way
	over    bool        // the handler has returned
	since   time.Time   // when the wait began, or the last Recv or Send returned
}

func newWatch(limit time.Duration, stalled func()) *watch {
	return &watch{limit: limit, stalled: stalled}
}

// start is called when the lock is held. The handler may have returned at that moment.
func (w *watch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.since = time.Now()
	w.timer = time.AfterFunc(w.limit, w.look)
}

// stop is called when the handler has returned.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// begin is called before a Recv or a Send.
func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting++; w.waiting == 1 {
		w.since = time.Now()
	}
}

// progress is called when a Recv or a Send has returned.
func (w *watch) progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
	w.since = time.Now()
}

// look checks the client at the earliest time at which the client can have used up the limit. So
// messages need no timers of their own.
func (w *watch) look() {
	if w.tooLong() {
		w.stalled()
	}
}

// tooLong reports whether the client has used up the limit. If the client has time left, look is
// called again later.
func (w *watch) tooLong() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return false
	}
	rest := w.limit
	if w.waiting > 0 {
		rest -= time.Since(w.since)
	}
	if rest > 0 {
		w.timer.Reset(rest)
	}
	return rest <= 0
}
