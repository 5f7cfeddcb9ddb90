// Package breaker lets requests run at once and without a lock during an outage of the lock
// server. The adapters use it for their option WithFailOpen.
package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
)

const (
	// pause is the time between two probes of a server that does not answer.
	pause = time.Second
	// patience is how long a request waits for its lock before the server is probed. It is also how
	// long a request that asks for all others may do that.
	patience = time.Second
	// probeTimeout is the time-out of a probe.
	probeTimeout = 500 * time.Millisecond
)

// A Breaker notices an outage of the lock server and its end.
//
//	state      requests                                 ends
//	closed     ask the server                           when a request or a probe finds no server: open
//	open       run without a lock                       when a probe in the background is answered: half open
//	half open  one asks, the others run without a lock  when it gets an answer: closed; or none: open
//
// A probe reads one key, so it proves less than a request: a server that refuses every write
// answers it. Only a grant, locker.ErrBusy and the Locker's ErrDone prove that the server works
// again.
//
// A Breaker is safe for concurrent use. Make a Breaker with [New]. A nil Breaker is always closed,
// and no request runs without a lock.
type Breaker struct {
	locker locker.Locker

	mu      sync.Mutex
	state   state
	asked   time.Time // half open: when the last request was sent to the server
	probing bool      // a probe in the background is under way, or will begin
}

type state uint8

const (
	closed state = iota
	open
	halfOpen
)

// New returns a closed Breaker for l.
func New(l locker.Locker) *Breaker { return &Breaker{locker: l} }

// ErrOutage is the reason why a request runs without a lock although it has not asked for one.
var ErrOutage = fmt.Errorf("%w: the lock server did not answer an earlier request", locker.ErrUnavailable)

// Open reports whether a request runs without a lock, and does not ask the server.
func (b *Breaker) Open() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == halfOpen && time.Since(b.asked) >= patience { // the client of the last one may have left, or may wait for a busy lock
		b.asked = time.Now()
		return false
	}
	return b.state != closed
}

// Permits reports whether a request that could not get its lock runs without it. err is the reason.
func (b *Breaker) Permits(ctx context.Context, err error) bool {
	return b != nil && errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, exclusive.ErrForeign) && ctx.Err() == nil
}

// Try calls ask, which asks for the lock of key in the context that it gets, and calls granted when
// it has the lock. Try returns the error of ask. If the server stops to answer while ask waits, Try
// ends the wait, and returns a locker.ErrUnavailable.
func (b *Breaker) Try(ctx context.Context, key string, ask func(ctx context.Context, granted func()) error) error {
	if b == nil {
		return ask(ctx, func() {})
	}
	w := wait{}
	w.ctx, w.end = context.WithCancelCause(ctx)
	defer w.end(nil)
	timer := time.AfterFunc(patience, func() {
		if err := b.probe(w.ctx, key); err != nil {
			w.giveUp(&locker.Error{Op: locker.OpAcquire, Key: key, Err: err})
		}
	})
	defer timer.Stop()
	err := ask(w.ctx, func() {
		timer.Stop()
		w.grant()
		b.answered()
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.granted {
		return err
	}
	if w.outage != nil && err != nil { // without an error, a stored answer came while the server was given up
		err = w.outage
	}
	b.learn(ctx, key, err)
	return err
}

// learn records the error of a request that did not get its lock. The ErrDone of a stored response,
// and the ErrUnavailable of a store of responses, say nothing about the lock server.
func (b *Breaker) learn(ctx context.Context, key string, err error) {
	_, ofLocker := errors.AsType[*locker.Error](err)
	switch {
	case errors.Is(err, locker.ErrBusy) || ofLocker && errors.Is(err, locker.ErrDone):
		b.answered()
	case ofLocker && errors.Is(err, locker.ErrUnavailable):
		b.mu.Lock()
		defer b.mu.Unlock()
		if ctx.Err() == nil { // a client may set a deadline that no server can meet: then the probe decides
			b.state = open
		}
		if !b.probing {
			b.probing = true
			b.probeLater(key)
		}
	}
}

// answered closes b.
func (b *Breaker) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = closed
}

// probeLater probes the server after a pause, again and again until the server answers. So b does
// not stay open when no requests come. A Locker that was closed answers with ErrClosed, which ends
// the probes.
func (b *Breaker) probeLater(key string) {
	time.AfterFunc(pause, func() {
		err := b.probe(context.Background(), key)
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil {
			b.state = open
			b.probeLater(key)
			return
		}
		b.probing = false
		if b.state == open { // otherwise a request that had asked before the outage got an answer
			b.state, b.asked = halfOpen, time.Time{}
		}
	})
}

// probe returns an error if the server of key does not answer. It takes no lock. A Locker that
// cannot look at a key is not probed: then one request asks after each pause.
func (b *Breaker) probe(ctx context.Context, key string) error {
	i, ok := b.locker.(interface {
		Inspect(ctx context.Context, key string) (locker.Info, error)
	})
	if !ok {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	switch _, err := i.Inspect(ctx, key); {
	case errors.Is(err, locker.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
	}
	return nil
}

// wait is the wait of a request for its lock.
type wait struct {
	ctx context.Context
	end context.CancelCauseFunc

	mu      sync.Mutex
	granted bool
	outage  error
}

func (w *wait) grant() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted = true
}

func (w *wait) giveUp(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.granted { // after the grant, only the end of the lock may end the work
		w.outage = why
		w.end(why)
	}
}
