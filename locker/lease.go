package locker

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
)

// A Lease is one caller's use of a lock, from the grant to the release or the loss. On release the
// lock may go to the next caller in this process without a round trip; callers cannot tell the
// difference. A Lease is safe for concurrent use; its zero value is not usable. Its context ends
// when the work must stop. The lease itself can last longer: Engine.Close renews it until the work
// has stopped.
type Lease struct {
	engine  *Engine
	hold    *hold
	rule    Rule // complete
	fence   uint64
	began   time.Time       // when this Lease got the hold
	base    context.Context // the caller's, with what the Observer added for the hold
	endHold func(Outcome)
	told    sync.Once // the Observer was told of the hold's end
	part    *part     // nil unless it is one of several uses of a Lease that is not shown: see family

	mu      sync.Mutex
	mode    Mode                      // Shared after Downgrade, too
	over    error                     // nil while held; then ErrReleased, or how it was lost
	lasted  time.Duration             // from began until that was found
	cause   error                     // nil while the contexts live
	cancels []context.CancelCauseFunc // of the contexts derived from this lease
	own     context.Context           // made by the first call of Context

	releasing bool          // Release was called
	done      bool          // and has ended
	released  error         // what it returned
	waiters   chan struct{} // closed then; made by whoever calls Release meanwhile
}

// init makes l the Lease of the caller a, over h with one of its fences.
func (l *Lease) init(a *acquisition, h *hold, fence uint64) {
	l.engine, l.hold, l.rule, l.mode, l.fence, l.began = a.engine, h, a.rule, a.rule.Mode, fence, time.Now()
	l.base, l.endHold = a.engine.cfg.observe(a.caller, OpHold, a.rule)
}

// String returns for example "lease of order:42, fence 1763688000123456". The owner's token is
// never shown.
func (l *Lease) String() string { return fmt.Sprintf("lease of %s, fence %d", l.rule.Key, l.fence) }

// Format prints String for every verb, so that no %+v shows the token.
func (l *Lease) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, l.String()) }

// Key returns the key as the Rule gave it.
func (l *Lease) Key() string { return l.rule.Key }

// Mode returns the Rule's mode, and Shared after Downgrade.
func (l *Lease) Mode() Mode {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode
}

// Fence returns a number that grows with every grant of the key, also when a lease is passed on
// inside a process; all who share the key in one phase of readers have the same, on a quorum
// mostly. Hand it to whatever the lock protects and let that refuse a smaller one than it has seen:
// then a holder that was paused past its lease can do no harm. It is 0 only where the Store cannot
// mint one.
func (l *Lease) Fence() uint64 { return l.fence }

// Expires returns when the lease ends unless it is renewed: a conservative bound on the local
// monotonic clock, before the server would give the key to anybody else. Of a lease that has ended
// it is when it ended.
func (l *Lease) Expires() time.Time {
	deadline := l.engine.keeper.deadlineOf(l.hold)
	if l.part != nil && !l.part.until.IsZero() && l.part.until.Before(deadline) {
		deadline = l.part.until
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended := l.began.Add(l.lasted); l.over != nil && ended.Before(deadline) {
		return ended
	}
	return deadline
}

// Context returns a context that carries the values of the one given to Acquire, but not its
// cancellation, and that ends with the lease. context.Cause then says why: ErrReleased, or an
// [*Error] for ErrLost, ErrRevoked, ErrExpired or ErrClosed.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own == nil {
		l.own = l.derive(context.WithoutCancel(l.base))
	}
	return l.own
}

// bound is the context for Run's function: it ends with the caller's context or with the lease,
// whichever is first.
func (l *Lease) bound() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.derive(l.base)
}

// derive makes a context that ends with the lease; l.mu is held.
func (l *Lease) derive(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(withLease(parent, l))
	if l.cause != nil {
		cancel(l.cause)
	} else {
		l.cancels = append(l.cancels, cancel)
	}
	return ctx
}

// around is a context like parent that has the lease, and ends with it.
func (l *Lease) around(parent context.Context) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.derive(parent)
}

// guard is a context like parent that ends with the lease too, but does not have it.
func (l *Lease) guard(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	l.onEnd(cancel)
	return ctx
}

// onEnd has f called when the contexts end, with the cause; at once if they have ended.
func (l *Lease) onEnd(f func(cause error)) {
	l.mu.Lock()
	if l.cause == nil {
		l.cancels = append(l.cancels, f)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	f(l.cause)
}

// end ends the Lease: the first to call it decides why, and is told so.
func (l *Lease) end(why error) bool {
	l.mu.Lock()
	if l.over != nil {
		l.mu.Unlock()
		return false
	}
	l.over, l.lasted = why, time.Since(l.began)
	l.mu.Unlock()
	l.cancel(why)
	return true
}

// lose ends the Lease for a reason that its owner must hear. It is false when it had ended before.
func (l *Lease) lose(why error) bool {
	if !l.end(l.wrap(OpHold, why)) {
		return false
	}
	// Not on the keeper's goroutine: a slow Observer must not delay the deadlines of other leases.
	calls.Ask(&l.engine.calls, func() (struct{}, error) { l.tell(why); return struct{}{}, nil })
	return true
}

// tell lets the Observer know, once, how the hold ended. A loss ends the contexts first, so that no
// Observer delays them; a Release that comes in between tells instead, so whoever has released has
// been observed.
func (l *Lease) tell(why error) {
	l.told.Do(func() { finish(l.endHold, l.outcome(OpHold, why)) })
}

// cancel ends the contexts, with the first cause that is given.
func (l *Lease) cancel(cause error) {
	l.mu.Lock()
	if l.cause != nil {
		l.mu.Unlock()
		return
	}
	l.cause = cause
	cancels := l.cancels
	l.cancels = nil
	l.mu.Unlock()
	for _, cancel := range cancels {
		cancel(cause)
	}
}

// gone says why the contexts have ended, nil while they live: how the hold ended, or ErrClosed.
func (l *Lease) gone() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// ended says how the hold ended, nil while it is held.
func (l *Lease) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// wrap puts operation and key to err, replacing those of an inner Error about the same lease.
func (l *Lease) wrap(op Op, err error) error {
	if inner, ok := errtype.As[*Error](err); ok {
		err = inner.Err
	}
	return &Error{Op: op, Key: l.rule.Key, Err: err}
}

// Observe tells the Locker's Observer that op begins under this lease, as the Locker tells it of
// its own operations. It returns what the Observer made of ctx, and what must be called once when
// op has ended, without the Fence, which is filled in. It is for adapters, such as package sqllock.
func (l *Lease) Observe(ctx context.Context, op Op) (context.Context, func(Outcome)) {
	ctx, end := l.engine.cfg.observe(ctx, op, l.rule)
	return ctx, func(o Outcome) {
		o.Fence = l.fence
		finish(end, o)
	}
}

func (l *Lease) outcome(op Op, err error) Outcome {
	return Outcome{Result: resultOf(op, err), Err: err, Fence: l.fence, TTL: l.engine.keeper.eachOf(l.hold)}
}
