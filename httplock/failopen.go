package httplock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker"
)

// A breaker remembers an outage of the lock server, so that few requests of [WithFailOpen] wait for
// a server that does not answer.
type breaker struct {
	mu      sync.Mutex
	open    time.Time     // until this time, no request asks the server
	pause   time.Duration // 0: there is no outage
	probing bool          // a request is asking the server
}

const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// patience is how long a request waits before it checks whether the server answers at all.
	patience = time.Second
	// probeTimeout is the time-out of the check that follows after patience.
	probeTimeout = 500 * time.Millisecond
)

// asks returns true if a request must ask the server. During an outage, a single request asks the
// server after each pause. All other requests run without a lock.
func (b *breaker) asks() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.pause == 0:
		return true
	case b.probing || time.Now().Before(b.open):
		return false
	}
	b.probing = true
	return true
}

// asked records what a request has learned of the server. Only a grant, ErrBusy and the Locker's
// ErrDone prove that the server has answered. For example, the client may have left before the
// server's answer, or the request may have got a stored response, which is an ErrDone without a
// locker.Error.
func (b *breaker) asked(granted bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	_, refused := errtype.As[*locker.Error](err)
	switch {
	case granted || errors.Is(err, locker.ErrBusy) || refused && errors.Is(err, locker.ErrDone):
		b.pause = 0
	case errors.Is(err, locker.ErrUnavailable) && time.Now().After(b.open): // if several requests have waited, only the first failure counts
		b.pause = min(max(2*b.pause, firstPause), longestPause)
		b.open = time.Now().Add(b.pause)
	}
}

// inspector is a Locker that can show the state of a lock without waiting for the lock. Every
// Engine is an inspector.
type inspector interface {
	Inspect(ctx context.Context, key string) (locker.Info, error)
}

// impatience ends the wait for a server that gives no answer. A wait for a busy lock continues.
// Middlewares without WithFailOpen have a nil impatience, which does not limit the wait.
type impatience struct {
	ctx     context.Context
	end     context.CancelCauseFunc
	timer   *time.Timer
	breaker *breaker

	mu      sync.Mutex
	granted bool
	outage  error
}

// impatience returns an impatience for a wait for key that begins now.
func (m *middleware) impatience(ctx context.Context, key string) *impatience {
	if !m.failOpen {
		return nil
	}
	w := &impatience{breaker: &m.breaker}
	w.ctx, w.end = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(patience, func() {
		i, ok := m.locker.(inspector)
		if !ok {
			return
		}
		probe, stop := context.WithTimeout(w.ctx, probeTimeout)
		defer stop()
		_, err := i.Inspect(probe, key)
		if errors.Is(err, locker.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			w.giveUp(&locker.Error{Op: locker.OpAcquire, Key: key, Err: fmt.Errorf("%w: %w", locker.ErrUnavailable, err)})
		}
	})
	return w
}

// context returns the context in which the request waits.
func (w *impatience) context(ctx context.Context) context.Context {
	if w == nil {
		return ctx
	}
	return w.ctx
}

func (w *impatience) giveUp(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.granted { // after the grant, only the end of the lock may end the work
		w.outage = why
		w.end(why)
	}
}

// grant is called when the lock was granted.
func (w *impatience) grant() {
	if w == nil {
		return
	}
	w.timer.Stop()
	w.mu.Lock()
	w.granted = true
	w.mu.Unlock()
	w.breaker.asked(true, nil)
}

// stop ends the wait, and returns its result. err is the Locker's error.
func (w *impatience) stop(ran bool, err error) error {
	if w == nil {
		return err
	}
	w.timer.Stop()
	w.end(nil)
	if ran {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.outage != nil {
		err = w.outage
	}
	w.breaker.asked(false, err)
	return err
}
