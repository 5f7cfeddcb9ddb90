package locker

import (
	"context"
	"fmt"
	"time"
)

// Drain prepares l for the end of the program: see [Engine.Drain]. It works for all Lockers of this
// package, and for wrappers that have a method Drain(context.Context) error. For other Lockers, the
// error is ErrUnsupported.
func Drain(ctx context.Context, l Locker) error {
	if isNil(l) {
		return errNil(OpDrain, "", "Locker", "one of New, and check its error")
	}
	if d, ok := l.(interface {
		Drain(ctx context.Context) error
	}); ok {
		return d.Drain(ctx)
	}
	return &Error{Op: OpDrain, Err: fmt.Errorf("%w: the %T has no method Drain; call Drain of the Engine inside, or let the wrapper forward the call", ErrUnsupported, l)}
}

// Drain is the first step of a shutdown. From now on, callers that wait for a lock, and callers
// that come later, fail with ErrClosed and a RetryAfter. Holders keep their leases and their
// contexts, and Drain waits until the last of them has released its lease. A caller whose context
// has a lease of this Locker counts as a holder: it may wait for further locks, because its work
// could not end without them.
//
// If ctx ends first, the contexts of the leases that are left end with ErrClosed, and Drain returns
// the error of ctx. The leases are still renewed until they are released. Then call [Engine.Close],
// which also waits for the functions of [Run], and ends what the Locker does in the background:
//
//	err := l.Drain(ctx)                          // refuses newcomers; the holders finish
//	err = errors.Join(err, server.Shutdown(ctx)) // the server sends the last responses
//	err = errors.Join(err, l.Close(ctx))
//
// Each further Drain waits as well, with a ctx of its own; the first ctx that ends is the end of
// the holders' time. A Close during a Drain ends the contexts of the leases at once, and the Drain
// with ErrClosed. After Close, Drain returns nil. The lease of a leader (package lead) ends when
// the ctx of lead.Run does, so end that ctx before.
func (e *Engine) Drain(ctx context.Context) error {
	e.refuseNewcomers()
	idle := e.holders.Idle()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-e.closing:
		return &Error{Op: OpDrain, Err: fmt.Errorf("%w while leases were held", ErrClosed)}
	case <-ctx.Done():
		left := e.endContexts()
		return &Error{Op: OpDrain, Err: fmt.Errorf("%w: %d leases were still held, and their contexts have ended; call Close, and give Drain a longer ctx if the holders need more time", ctx.Err(), left)}
	}
}

// Drain drains the Engine inside.
func (p *partLocker) Drain(ctx context.Context) error { return Drain(ctx, p.inner) }

// refuseNewcomers makes callers without a lease fail, also those that wait already.
func (e *Engine) refuseNewcomers() {
	e.shutDoors.Do(func() {
		e.holders.Close()
		close(e.draining)
	})
}

// endContexts ends the contexts of all leases with ErrClosed, and returns how many leases there
// are.
func (e *Engine) endContexts() int {
	all := e.keeper.leases()
	for _, l := range all {
		l.state.cancel(&Error{Op: OpHold, Key: l.rule.Key, Err: ErrClosed})
	}
	return len(all)
}

// errClosed returns the error for an acquire of key after the begin of Drain or Close. Another
// process of the service can do the work by the time of its RetryAfter.
func errClosed(key string) error {
	return &Error{Op: OpAcquire, Key: key, RetryAfter: time.Second, Err: ErrClosed}
}

// enterAcquire counts a call of Acquire, by w, among the calls under way. It returns
// false if the caller is refused, because the Locker is closed or being drained.
func (e *Engine) enterAcquire(w *waiter) bool {
	w.refused = e.draining
	// Join fails when the lease of the caller has ended meanwhile, and Drain has returned.
	if !e.holders.Enter() && (!w.isHolder() || !e.holders.Join()) {
		return false
	}
	if e.acquires.Enter() {
		return true
	}
	e.holders.Leave()
	return false
}

// leaveAcquire ends what enterAcquire has counted. If the call has got a lease, the lease was
// counted as well. Close waits for this call before it stops the undos.
func (e *Engine) leaveAcquire() {
	e.acquires.Leave()
	e.holders.Leave()
}

// isRefused reports whether the caller must not wait any longer, because the Locker is being closed
// or drained. During a drain, this is decided only when it matters, because it costs a look into
// the context.
func (w *waiter) isRefused() bool {
	select {
	case <-w.refused:
	default:
		return false
	}
	if w.refused == w.engine.draining && w.isHolder() {
		w.refused = w.engine.closing
		return w.engine.isClosing()
	}
	return true
}

// isHolder reports whether the caller's context has a lease of this Engine that has not ended.
func (w *waiter) isHolder() bool {
	for h := heldIn(w.ctx); h != nil; h = h.outer {
		if h.lease != nil && h.lease.engine == w.engine && h.lease.state.endError() == nil {
			return true
		}
	}
	return false
}
