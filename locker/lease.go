package locker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// A Lease is one hold of a lock, from its grant to its release or loss. It is safe for concurrent use; its zero value is
// not usable. Two things end separately: its context, which tells the work to stop, and the hold itself, which Close
// keeps up until the work has stopped.
type Lease struct {
	engine  *Engine
	rule    Rule // complete
	token   string
	fence   uint64
	granted time.Time       // when the granting call was sent
	unclear bool            // an acquire of token is unanswered, so the release must undo it
	base    context.Context // the caller's, with what the Observer added for the hold
	endHold func(Outcome)
	told    sync.Once // the Observer was told of the hold's end

	renewal // guarded by the keeper's mutex

	mu      sync.Mutex
	over    error                     // nil while held; then ErrReleased, or how it was lost
	cause   error                     // nil while the contexts live
	cancels []context.CancelCauseFunc // of the contexts derived from this lease
	own     context.Context           // made by the first call of Context

	releasing chan struct{} // not nil once Release was called; closed when it has ended
	released  error         // what it returned
}

func newLease(a *acquisition, g Grant, deadline time.Time) *Lease {
	l := &Lease{
		engine: a.engine, rule: a.rule, token: a.token, fence: g.Fence, granted: a.sent, unclear: a.unclear,
		renewal: renewal{ttl: a.rule.lease(), longest: a.rule.lease(), deadline: deadline},
	}
	if a.rule.AtMost != 0 {
		l.until = a.sent.Add(a.rule.AtMost)
	}
	l.base, l.endHold = a.engine.cfg.begin(a.caller, OpHold, a.rule)
	return l
}

// String returns for example "lease of order:42, fence 1763688000123456". The owner's token is never shown.
func (l *Lease) String() string { return fmt.Sprintf("lease of %s, fence %d", l.rule.Key, l.fence) }

// Format prints String for every verb, so that no %+v shows the token.
func (l *Lease) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, l.String()) }

// Key returns the key as the Rule gave it.
func (l *Lease) Key() string { return l.rule.Key }

// Mode returns the Rule's mode.
func (l *Lease) Mode() Mode { return l.rule.Mode }

// Fence returns a number that grows with every grant of the key. Hand it to whatever the lock protects and let that
// refuse a smaller one than it has seen: then a holder that was paused past its lease can do no harm. It is 0 only
// where the Store cannot mint one.
func (l *Lease) Fence() uint64 { return l.fence }

// Expires returns when the lease ends unless it is renewed: a conservative bound on the local monotonic clock, before
// the server would give the key to anybody else.
func (l *Lease) Expires() time.Time { return l.engine.keeper.deadlineOf(l) }

// Context returns a context that carries the values of the one given to Acquire, but not its cancellation, and that ends
// with the lease. context.Cause then says why: ErrReleased, or an [*Error] for ErrLost, ErrRevoked, ErrExpired or
// ErrClosed.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own == nil {
		l.own = l.derive(context.WithoutCancel(l.base))
	}
	return l.own
}

// bound is the context for Run's function: it ends with the caller's context or with the lease, whichever is first.
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

// Extend makes the lease last at least ttl from now, and renewals renew it by ttl from now on. To less than is left, it
// only shortens this side's view: the server is not asked. AtMost still bounds it. ctx ends the attempt, not the lease.
//
// Errors: ErrReleased, ErrLost, ErrRevoked, ErrExpired; ErrInvalidRule for a ttl below 1 ms or above WithMaxTTL;
// ErrUnavailable when the server refuses for good; ctx.Err(). After the last two the lease is as it was.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	ctx, end := l.engine.cfg.begin(ctx, OpExtend, l.rule)
	calls := 0
	err := l.extend(ctx, ttl, &calls)
	if err != nil {
		err = l.wrap(OpExtend, err)
	}
	if end != nil {
		end(Outcome{Result: resultOf(OpExtend, err), Err: err, Fence: l.fence, Calls: calls})
	}
	return err
}

func (l *Lease) extend(ctx context.Context, ttl time.Duration, calls *int) error {
	e := l.engine
	if ttl < time.Millisecond {
		return fmt.Errorf("%w: Extend by %v; the smallest is 1ms", ErrInvalidRule, ttl)
	}
	if e.cfg.maxTTL != 0 && ttl > e.cfg.maxTTL {
		return fmt.Errorf("%w: Extend by %v, this Locker's WithMaxTTL allows %v", ErrInvalidRule, ttl, e.cfg.maxTTL)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.ended(); err != nil {
		return err
	}
	if e.keeper.shorten(l, ttl) {
		return nil
	}
	over := l.Context().Done()
	for pause := range betweenRepeats {
		claim, start := e.keeper.claim(l)
		*calls++
		select {
		case r := <-ask(&e.calls, func() ([]Grant, error) { return e.store.Renew(ctx, []Claim{claim}) }):
			var no *Refusal
			switch {
			case r.err == nil && len(r.value) == 1:
				e.keeper.answered(l, r.value[0], claim.TTL, start)
				return l.ended()
			case errors.As(r.err, &no) && !no.Temporary:
				return unavailable(r.err)
			}
		case <-over:
			return l.ended()
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-time.After(pause):
		case <-over:
			return l.ended()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil // betweenRepeats has no end
}

// releaseWithin bounds how long Release and Complete keep their caller while the server does not answer.
const releaseWithin = 2 * time.Second

// betweenRepeats are the pauses between repetitions of a release or an extension.
var betweenRepeats = Jitter(Exponential(10*time.Millisecond, 500*time.Millisecond))

// Release gives the lock up. Call it once the work is done, whatever became of ctx: only ctx's values are used, its
// cancellation is not. It may be called again, which returns nil too. It takes at most 2 s; when the server has not
// answered by then the release goes on in the background until it is confirmed or the lease has run out.
//
// Errors: ErrLost, ErrRevoked or ErrExpired when the lease had ended before; ErrUnavailable when there is no answer.
func (l *Lease) Release(ctx context.Context) error { return l.release(ctx, false) }

// Complete is Release after success: with Rule.Once, the same step on the server remembers that the work is done. Without
// Once it is Release.
func (l *Lease) Complete(ctx context.Context) error { return l.release(ctx, true) }

func (l *Lease) release(ctx context.Context, complete bool) error {
	l.mu.Lock()
	if l.releasing != nil {
		l.mu.Unlock()
		<-l.releasing // bounded by releaseWithin
		return l.released
	}
	l.releasing = make(chan struct{})
	l.mu.Unlock()
	defer close(l.releasing)

	ctx, end := l.engine.cfg.begin(context.WithoutCancel(ctx), OpRelease, l.rule)
	calls := 0
	var err error
	if l.end(ErrReleased) {
		err = l.send(ctx, complete && l.rule.Once > 0, &calls)
	} else {
		err = l.ended()
	}
	l.tell(err)
	if err != nil {
		l.released = l.wrap(OpRelease, err)
	}
	if end != nil {
		o := l.outcome(OpRelease, l.released)
		o.Calls = calls
		end(o)
	}
	return l.released
}

// send repeats the release until it is answered. Its answers, and what they mean:
//
//	released                      nil
//	not ours, an earlier attempt of this release being unclear and sent within the lease   that attempt did it: nil
//	not ours otherwise            somebody else has it, or the server forgot it: ErrLost
//	revoked                       ErrRevoked
//	refused for good, or no answer within releaseWithin   ErrUnavailable; the cleaner goes on
func (l *Lease) send(ctx context.Context, complete bool, calls *int) error {
	e := l.engine
	ctx, cancel := context.WithTimeout(ctx, releaseWithin)
	defer cancel()
	deadline := l.Expires()
	ch := l.chore()
	claim := &ch.claim
	if complete {
		claim.Complete, claim.Once = true, l.rule.Once
	}
	earlier := false
	last := errors.New("no answer")
	for pause := range betweenRepeats {
		sent := time.Now()
		within := sent.Before(deadline)
		if !ch.keep.IsZero() {
			claim.Keep = max(0, ch.keep.Sub(sent))
		}
		attempt := *claim
		*calls++
		select {
		case r := <-ask(&e.calls, func() (Grant, error) { return e.store.Release(ctx, attempt) }):
			var no *Refusal
			switch {
			case r.err == nil && r.value.State == Released, r.err == nil && r.value.State == NotOurs && earlier:
				return nil
			case r.err == nil && r.value.State == Revoked:
				return revokedBecause(r.value.Reason)
			case r.err == nil:
				return fmt.Errorf("%w: the server says it is not ours", ErrLost)
			case errors.As(r.err, &no) && !no.Temporary:
				e.cleaner.add(ch)
				return unavailable(r.err)
			case !errors.As(r.err, &no):
				earlier = earlier || within
			}
			last = r.err
		case <-ctx.Done():
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			e.cleaner.add(ch)
			return unavailable(last)
		}
	}
	return nil // betweenRepeats has no end
}

// end ends the hold: the first to call it decides why, and is told so. Renewal has stopped when it returns.
func (l *Lease) end(why error) bool {
	l.engine.keeper.remove(l)
	l.mu.Lock()
	if l.over != nil {
		l.mu.Unlock()
		return false
	}
	l.over = why
	l.mu.Unlock()
	l.cancel(why)
	return true
}

// lose ends the hold for a reason that its owner must hear, and frees what may be left of it on the server.
func (l *Lease) lose(why error, mayBeOurs bool) {
	if !l.end(l.wrap(OpHold, why)) {
		return
	}
	l.tell(why)
	if mayBeOurs || l.unclear {
		l.engine.cleaner.add(l.chore())
	}
}

// chore is the release of this lease, as the cleaner would do it.
func (l *Lease) chore() chore {
	claim := Claim{
		Key: l.engine.cfg.prefix + l.rule.Key, Owner: l.token, Mode: l.rule.Mode,
		Undo: undoFor(l.unclear, l.rule.lease()),
	}
	ch := chore{claim: claim, useless: time.Now().Add(max(l.engine.keeper.longestOf(l), claim.Undo))}
	if l.rule.AtLeast > 0 {
		ch.keep = l.granted.Add(l.rule.AtLeast)
	}
	return ch
}

// tell lets the Observer know, once, how the hold ended. A loss ends the contexts first, so that no Observer delays them;
// a Release that comes in between tells instead, so whoever has released has been observed.
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

// ended says how the hold ended, nil while it is held.
func (l *Lease) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// wrap puts operation and key to err, replacing those of an inner Error about the same lease.
func (l *Lease) wrap(op Op, err error) error {
	var inner *Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return &Error{Op: op, Key: l.rule.Key, Err: err}
}

func (l *Lease) outcome(op Op, err error) Outcome {
	return Outcome{Result: resultOf(op, err), Err: err, Fence: l.fence}
}
