package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// unansweredFor is the longest time for which an acquire is repeated while the server has not yet
// answered whether the key is held.
const unansweredFor = time.Second

// errWaitOver is the reason when Rule.Wait has passed. giveUp turns it into an error for the
// caller.
var errWaitOver = errors.New("the wait is over")

// handleError handles err, the error of a call of the Store. It returns nil if the caller may ask
// again.
func (a *acquisition) handleError(err error) error {
	var no *store.Refusal
	switch {
	case errors.Is(err, store.ErrNotReplicated): // the server has written the grant, so it must be undone
		a.token.endCall(callLost)
		return a.fail(err, 0)
	case !errors.As(err, &no):
		a.token.endCall(callLost)
	case !no.Temporary:
		a.token.endCall(callRefused)
		return a.fail(asUnavailable(err), 0)
	default:
		a.token.endCall(callRefused)
	}
	return a.handleNoAnswer(err)
}

// handleNoAnswer handles err, the error of a call without an answer. It returns nil if the caller
// may ask again. With NoWait, the caller may not ask again. A waiter that has seen a holder may
// always ask again. A waiter that has seen no holder may ask again until unansweredFor has passed.
// During a move of the key's data to another server, it may also ask again after that.
func (a *acquisition) handleNoAnswer(err error) error {
	a.failure = err
	if a.cohort != nil {
		a.engine.cohorts.noteFailure(a)
	}
	if a.busySince.IsZero() && a.overdue() && !errors.Is(err, store.ErrMoving) || a.rule.Wait == NoWait {
		return a.fail(asUnavailable(err), 0)
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

// neverAnswered reports whether the acquire failed with err before the server gave its first
// answer.
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
		return a.fail(asUnavailable(a.failure), 0)
	case seen && reason == errWaitOver && a.laterKey != "":
		return a.fail(fmt.Errorf("%w; this caller did not wait, because it already holds %s, which sorts behind this key, and two such callers could deadlock; acquire all keys in one RunAll", ErrBusy, printable(a.laterKey)), a.retryAfter())
	case seen && reason == errWaitOver && a.alreadyReads:
		return a.fail(fmt.Errorf("%w; this caller did not wait, because it already reads under the key, and a waiting writer waits for this caller; set AtLeast, AtMost and Once on the outer lease", ErrBusy), a.retryAfter())
	case seen && reason == errWaitOver:
		return a.fail(ErrBusy, a.retryAfter())
	case seen:
		return a.fail(fmt.Errorf("%w: %w", reason, ErrBusy), a.retryAfter())
	case reason == errWaitOver && a.failure != nil:
		return a.fail(asUnavailable(a.explainFailure()), 0)
	case reason == errWaitOver && a.explainFailure() != nil:
		return a.fail(asUnavailable(a.explainFailure()), 0)
	case reason == errWaitOver:
		return a.fail(fmt.Errorf("%w: no answer within the wait of %v", ErrUnavailable, a.rule.Wait), 0)
	case errors.Is(reason, context.DeadlineExceeded) && a.calls > 0:
		return a.fail(fmt.Errorf("%w: %w: no answer in time", reason, ErrUnavailable), 0)
	}
	return a.fail(reason, 0)
}

// explainFailure returns the error of the last call. If the last call got no answer and the Store
// knows why, explainFailure returns the Store's reason.
func (a *acquisition) explainFailure() error {
	if x, ok := a.engine.store.(store.Explainer); ok && (a.failure == nil || a.failure == errNoAnswer) {
		if err := x.Explain(); err != nil {
			return err
		}
	}
	return a.failure
}

// fail returns err as the Error of this acquire. If retryAfter is 0, the RetryAfter of err is used,
// if it has one.
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

// outcome returns the outcome for the Observer, when the acquire returns l and err.
func (a *acquisition) outcome(l *Lease, err error) Outcome {
	o := Outcome{
		Result: resultOf(OpAcquire, err), Err: err, Calls: a.calls, Rounds: a.rounds, HolderMetadata: unsigned(a.holder.Metadata),
		TTL: a.rule.leaseTTL(), Expected: a.expectedWait,
	}
	if l != nil {
		o.Fence = l.fence
	}
	if !a.busySince.IsZero() {
		o.Waited = time.Since(a.busySince)
	}
	a.sighting.copyTo(&o)
	if o.Result == ResultBusy && a.rule.Wait != NoWait {
		o.Result = ResultTimeout
	}
	return o
}

// asUnavailable returns err, the error of a Store, with ErrUnavailable added, unless err has a more
// precise sentinel.
func asUnavailable(err error) error {
	for _, known := range []error{ErrUnavailable, ErrInvalidKey, ErrUnsupported} {
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
