package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// While the server has not yet answered whether the key is held, an acquire is repeated for at most
// unansweredFor.
const unansweredFor = time.Second

// errWaitOver is the reason when Rule.Wait has passed. giveUp turns it into an error for the
// caller.
var errWaitOver = errors.New("the wait is over")

// handleError handles an error of the Store.
func (a *acquisition) handleError(err error) error {
	var no *store.Refusal
	switch {
	case errors.Is(err, store.ErrNotReplicated): // the server has written the grant, so it must be undone
		a.token.ended(callLost)
		return a.fail(err, 0)
	case !errors.As(err, &no):
		a.token.ended(callLost)
	case !no.Temporary:
		a.token.ended(callRefused)
		return a.fail(unavailable(err), 0)
	default:
		a.token.ended(callRefused)
	}
	return a.unanswered(err)
}

// unanswered returns nil if the caller may ask again. With NoWait, the caller may not ask again. A
// waiter that has seen a holder may always ask again. A waiter that has seen no holder may ask
// again until unansweredFor has passed. During a move of the key's data to another server, it may
// also ask again after that.
func (a *acquisition) unanswered(err error) error {
	a.failure = err
	if a.cohort != nil {
		a.engine.cohorts.noteFailure(a)
	}
	if a.busySince.IsZero() && a.overdue() && !errors.Is(err, store.ErrMoving) || a.rule.Wait == NoWait {
		return a.fail(unavailable(err), 0)
	}
	return nil
}

// overdue reports whether the caller has waited too long for the first answer.
func (a *acquisition) overdue() bool {
	bound := unansweredFor
	if a.rule.Wait != 0 {
		bound = min(bound, max(a.rule.Wait, 0))
	}
	return time.Since(a.began) >= bound
}

// neverAnswered reports whether the acquire failed before the server gave its first answer.
func (a *acquisition) neverAnswered(err error) bool {
	return a.busySince.IsZero() && errors.Is(err, ErrUnavailable)
}

// giveUp ends the wait because of reason. The returned error contains reason. It also contains
// ErrBusy if a holder was seen, or ErrUnavailable if the server gave no answer.
func (a *acquisition) giveUp(reason error) error {
	seen := !a.busySince.IsZero()
	switch {
	case reason == ErrClosed:
		return a.fail(ErrClosed, 0)
	// The last call failed, so the holder that was seen before may have left.
	case seen && reason == errWaitOver && !a.current && a.failure != nil:
		return a.fail(unavailable(a.failure), 0)
	case seen && reason == errWaitOver && a.behind != "":
		return a.fail(fmt.Errorf("%w; this caller did not wait, because it already holds %s, which sorts behind this key, and two such callers could deadlock; acquire all keys in one RunAll", ErrBusy, shown(a.behind)), a.retryAfter())
	case seen && reason == errWaitOver && a.inside:
		return a.fail(fmt.Errorf("%w; this caller did not wait, because it already reads under the key, and a waiting writer waits for this caller; set AtLeast, AtMost and Once on the outer lease", ErrBusy), a.retryAfter())
	case seen && reason == errWaitOver:
		return a.fail(ErrBusy, a.retryAfter())
	case seen:
		return a.fail(fmt.Errorf("%w: %w", reason, ErrBusy), a.retryAfter())
	case reason == errWaitOver && a.failure != nil:
		return a.fail(unavailable(a.explained()), 0)
	case reason == errWaitOver && a.explained() != nil:
		return a.fail(unavailable(a.explained()), 0)
	case reason == errWaitOver:
		return a.fail(fmt.Errorf("%w: no answer within the wait of %v", ErrUnavailable, a.rule.Wait), 0)
	case errors.Is(reason, context.DeadlineExceeded) && a.calls > 0:
		return a.fail(fmt.Errorf("%w: %w: no answer in time", reason, ErrUnavailable), 0)
	}
	return a.fail(reason, 0)
}

// explained returns the error of the last call. If the last call got no answer and the Store
// knows why, explained returns the Store's reason.
func (a *acquisition) explained() error {
	if x, ok := a.engine.store.(store.Explainer); ok && (a.failure == nil || a.failure == errNoAnswer) {
		if err := x.Explain(); err != nil {
			return err
		}
	}
	return a.failure
}

func (a *acquisition) fail(err error, retryAfter time.Duration) error {
	e := &Error{Op: OpAcquire, Key: a.rule.Key, RetryAfter: retryAfter, Err: err}
	var later interface{ RetryAfter() time.Duration }
	if retryAfter > 0 {
		e.HolderMetadata = unsigned(a.holder.Metadata)
	} else if errors.As(err, &later) {
		e.RetryAfter = later.RetryAfter()
	}
	return e
}

// outcome returns the result of the acquire for the Observer.
func (a *acquisition) outcome(l *Lease, err error) Outcome {
	o := Outcome{
		Result: resultOf(OpAcquire, err), Err: err, Calls: a.calls, Rounds: a.rounds, HolderMetadata: unsigned(a.holder.Metadata),
		TTL: a.rule.lease(), Expected: a.expects,
	}
	if l != nil {
		o.Fence = l.fence
	}
	if !a.busySince.IsZero() {
		o.Waited = time.Since(a.busySince)
	}
	a.sighting.add(&o)
	if o.Result == ResultBusy && a.rule.Wait != NoWait {
		o.Result = ResultTimeout
	}
	return o
}

// unavailable adds ErrUnavailable to an error of a Store, unless the error has a more precise
// sentinel.
func unavailable(err error) error {
	for _, known := range []error{ErrUnavailable, ErrInvalidKey, ErrUnsupported, ErrRefused} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func revokedBecause(reason string) error {
	if reason == "" {
		return ErrRevoked
	}
	return fmt.Errorf("%w: %s", ErrRevoked, reason)
}
