package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// unansweredFor bounds how long a first acquire is repeated when the server gives no answer about the lock.
const unansweredFor = time.Second

// errWaitOver ends a wait whose Rule.Wait has passed; giveUp turns it into what the caller sees.
var errWaitOver = errors.New("the wait is over")

// failed handles an error of the Store.
func (a *acquisition) failed(err error) error {
	var no *Refusal
	switch {
	case errors.Is(err, errFewAcks): // written, so it must be undone
		a.unclear, a.known = true, true
		return a.fail(err, 0)
	case !errors.As(err, &no):
		a.unclear, a.known = true, true
	case !no.Temporary:
		return a.fail(unavailable(err), 0)
	}
	return a.unanswered(err)
}

// unanswered lets a waiter that has seen a holder go on, and bounds the repetitions of one that has not.
func (a *acquisition) unanswered(err error) error {
	a.failure = err
	if a.cohort != nil {
		a.engine.cohorts.failed(a)
	}
	if a.busySince.IsZero() && a.overdue() && !movesSlots(err) || a.rule.Wait == NoWait {
		return a.fail(unavailable(err), 0)
	}
	return nil
}

// overdue: so long must nobody wait for a first answer.
func (a *acquisition) overdue() bool {
	bound := unansweredFor
	if a.rule.Wait != 0 {
		bound = min(bound, max(a.rule.Wait, 0))
	}
	return time.Since(a.began) >= bound
}

// unheard: the acquire has failed because the server cannot be asked.
func (a *acquisition) unheard(err error) bool {
	return a.busySince.IsZero() && errors.Is(err, ErrUnavailable)
}

// giveUp ends the wait for reason, and says all that is true: the reason, and whether a holder was seen or the server was
// never heard of.
func (a *acquisition) giveUp(reason error) error {
	seen := !a.busySince.IsZero()
	switch {
	case reason == ErrClosed:
		return a.fail(ErrClosed, 0)
	case seen && reason == errWaitOver && !a.current && a.failure != nil: // what the holder does now, nobody knows
		return a.fail(unavailable(a.failure), 0)
	case seen && reason == errWaitOver && a.behind != "":
		return a.fail(fmt.Errorf("%w, and it was not waited for: RunAll was called while %s is held, which sorts behind it, so whoever waits there could wait for ever; take all keys in one RunAll", ErrBusy, a.behind), a.retryAfter())
	case seen && reason == errWaitOver && a.inside:
		return a.fail(fmt.Errorf("%w, and it was not waited for: the caller reads under this key already, so the writer who waits would wait for the caller; leave AtLeast, AtMost and Once to the outer lease", ErrBusy), a.retryAfter())
	case seen && reason == errWaitOver:
		return a.fail(ErrBusy, a.retryAfter())
	case seen:
		return a.fail(fmt.Errorf("%w: %w", reason, ErrBusy), a.retryAfter())
	case reason == errWaitOver && a.failure != nil:
		return a.fail(unavailable(a.failure), 0)
	case reason == errWaitOver:
		return a.fail(fmt.Errorf("%w: no answer within the wait of %v", ErrUnavailable, a.rule.Wait), 0)
	case errors.Is(reason, context.DeadlineExceeded) && a.calls > 0:
		return a.fail(fmt.Errorf("%w: %w: no answer in time", reason, ErrUnavailable), 0)
	}
	return a.fail(reason, 0)
}

// retryAfter is what the holder has left if it dies now, or what those ahead need if they need as long as others did.
func (a *acquisition) retryAfter() time.Duration {
	after := a.holder.Left
	if after < 0 {
		after = a.rule.TTL
	}
	if d, ok := a.engine.times.expect(a.rule.Name); ok {
		after = min(after, d*time.Duration(max(a.place, 1)))
	}
	return max(after, time.Millisecond)
}

func (a *acquisition) fail(err error, retryAfter time.Duration) error {
	return &Error{Op: OpAcquire, Key: a.rule.Key, RetryAfter: retryAfter, Err: err}
}

// outcome tells the Observer how the acquire ended.
func (a *acquisition) outcome(l *Lease, err error) Outcome {
	o := Outcome{
		Result: resultOf(OpAcquire, err), Err: err, Calls: a.calls, Rounds: a.rounds, HolderMetadata: a.holder.Metadata,
		TTL: a.rule.lease(), Expected: a.expects,
	}
	if l != nil {
		o.Fence = l.fence
	}
	if !a.busySince.IsZero() {
		o.Waited = time.Since(a.busySince)
	}
	if o.Result == ResultBusy && a.rule.Wait != NoWait {
		o.Result = ResultTimeout
	}
	return o
}

// unavailable wraps an error of a Store in the sentinel, unless it has a more telling one already.
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
