package locker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// unansweredFor bounds how long a first acquire is repeated when the server gives no answer about the lock.
const unansweredFor = time.Second

// acquisition is one call of Acquire. Each turn of its loop asks the Store once, and races the answer against the end of
// the caller's context, of the wait, and of the Locker. What may come first, and what is done:
//
//	granted        a lease, unless the caller is gone or the grant came too late: then it is given back
//	busy           a pause, and again with the same token
//	refused        returned when permanent; otherwise again, for at most min(Wait, 1 s) while no holder was seen
//	unclear        again with the same token, which finds the grant if there was one; the same bound
//	ctx, Wait or Close end first   the call is abandoned: the token is undone in the background, so that a late
//	               execution takes nothing
type acquisition struct {
	engine *Engine
	rule   Rule
	caller context.Context // as the caller gave it: the lease's contexts descend from it
	ctx    context.Context // the same with the Observer's additions, for the calls
	began  time.Time
	expiry <-chan time.Time // rule.Wait is over

	token   string
	meta    string
	unclear bool      // an acquire of token is unanswered
	sent    time.Time // when token was last sent

	calls     int
	busySince time.Time // zero: no holder was seen
	holder    Holder
	hears     bool  // the last answer was busy, so news of the key matter
	failure   error // of the last call that gave no answer
	admitted  bool  // counted as a waiter
}

// errWaitOver ends a wait whose Rule.Wait has passed; giveUp turns it into what the caller sees.
var errWaitOver = errors.New("the wait is over")

func (a *acquisition) run() (*Lease, error) {
	if err := a.caller.Err(); err != nil {
		return nil, a.fail(err, 0)
	}
	select {
	case <-a.engine.closing:
		return nil, a.fail(ErrClosed, 0)
	default:
	}
	if a.rule.Mode == Shared {
		return nil, a.fail(fmt.Errorf("%w: Mode Shared needs a Locker with readers", ErrUnsupported), 0)
	}
	if a.rule.Wait > 0 {
		timer := time.NewTimer(a.rule.Wait)
		defer timer.Stop()
		a.expiry = timer.C
	}
	if f := a.engine.cfg.metadata; f != nil {
		a.meta = f(a.ctx)
		a.meta = a.meta[:min(len(a.meta), maxMetadataBytes)]
	}
	a.token = rand.Text()
	wake, leave := a.engine.waiters.listen(a.key())
	defer leave()

	defer func() {
		if a.admitted {
			a.engine.waiters.dismiss(a.key())
		}
	}()

	lease, err := a.ask()
	if lease != nil || err != nil {
		return lease, err // most often: nothing was set up for a wait
	}
	for pause := range a.engine.cfg.backoff {
		if err := a.pause(pause, wake); err != nil {
			return nil, err
		}
		if lease, err := a.ask(); lease != nil || err != nil {
			return lease, err
		}
	}
	return nil, a.giveUp(errWaitOver)
}

// ask asks the Store once. Neither a lease nor an error means: again.
func (a *acquisition) ask() (*Lease, error) {
	claim := Claim{
		Key: a.key(), Owner: a.token, Mode: a.rule.Mode, TTL: a.rule.lease(), Block: 1,
		Metadata: a.meta, Once: a.rule.Once,
	}
	a.calls++
	a.hears = false
	a.sent = time.Now()
	call := a.engine.calls.begin(a.ctx, Store.Acquire, claim)
	var over error
	select {
	case <-call.done:
		g, err := call.answer()
		if err != nil {
			return nil, a.failed(err)
		}
		return a.answered(g)
	case <-a.caller.Done():
		over = a.caller.Err()
	case <-a.expiry:
		over = errWaitOver
	case <-a.engine.closing:
		over = ErrClosed
	}
	call.abandon()
	a.unclear = true
	return nil, a.giveUp(over)
}

func (a *acquisition) answered(g Grant) (*Lease, error) {
	if g.State != Granted && g.State != Busy {
		a.undoUnclear() // an earlier call of this token may still run
	}
	switch g.State {
	case Granted:
		return a.granted(g)
	case Busy:
		a.holder, a.hears = g.Holder, true
		if a.busySince.IsZero() {
			a.busySince = a.sent
		}
		if a.rule.Wait == NoWait {
			return nil, a.giveUp(errWaitOver)
		}
		return nil, nil
	case Done:
		return nil, a.fail(ErrDone, 0)
	case Revoked: // between a grant whose answer was lost and this repetition
		return nil, a.fail(revokedBecause(g.Reason), 0)
	default: // Undone is only answered to tokens that were given up
		return nil, a.fail(fmt.Errorf("%w: unexpected answer %q to an acquire", ErrUnavailable, g.State), 0)
	}
}

// granted makes the lease, counting its deadline from before the call was sent. Grant and the end of the caller may
// come together: then the lock is given back.
func (a *acquisition) granted(g Grant) (*Lease, error) {
	e := a.engine
	deadline := a.sent.Add(a.rule.lease() - drift(a.rule.lease()))
	late := !time.Now().Before(deadline)
	gone := a.caller.Err()
	if !late && gone == nil {
		l := newLease(a, g, deadline)
		if e.keeper.add(l) {
			return l, nil
		}
		gone = ErrClosed
		l.tell(ErrClosed)
	}
	a.giveBack()
	if gone != nil {
		return nil, a.fail(gone, 0)
	}
	// One token is one hold, and this one's time is over: a second try needs a fresh one.
	a.token, a.unclear = rand.Text(), false
	return nil, a.unanswered(fmt.Errorf("the answer took longer than the lease of %v lives; raise the TTL", a.rule.lease()))
}

// failed handles an error of the Store.
func (a *acquisition) failed(err error) error {
	var no *Refusal
	switch {
	case !errors.As(err, &no):
		a.unclear = true
	case !no.Temporary:
		a.undoUnclear()
		return a.fail(unavailable(err), 0)
	}
	return a.unanswered(err)
}

// unanswered lets a waiter that has seen a holder go on, and bounds the repetitions of one that has not.
func (a *acquisition) unanswered(err error) error {
	a.failure = err
	bound := unansweredFor
	if a.rule.Wait != 0 {
		bound = min(bound, max(a.rule.Wait, 0))
	}
	if a.busySince.IsZero() && time.Since(a.began) >= bound || a.rule.Wait == NoWait {
		a.undoUnclear()
		return a.fail(unavailable(err), 0)
	}
	return nil
}

// pause waits before the next question: for d, no longer than the holder has left, or until told that the key is free.
// After an error or a late grant it does not listen: it would be woken by its own undo, and spin.
func (a *acquisition) pause(d time.Duration, wake <-chan struct{}) error {
	if !a.busySince.IsZero() {
		if !a.admitted && !a.engine.waiters.admit(a.key(), a.engine.cfg.maxWaiters) {
			a.undoUnclear()
			return a.fail(ErrTooManyWaiters, a.retryAfter())
		}
		a.admitted = true
		if left := a.holder.Left; left >= 0 && a.hears {
			d = min(d, left+time.Millisecond)
		}
	}
	if !a.hears {
		wake = nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-a.caller.Done():
		return a.giveUp(a.caller.Err())
	case <-a.expiry:
		return a.giveUp(errWaitOver)
	case <-a.engine.closing:
		return a.giveUp(ErrClosed)
	}
	return nil
}

// giveUp ends the wait for reason, undoes what is unclear, and says all that is true: the reason, and whether a holder
// was seen or the server was never heard of.
func (a *acquisition) giveUp(reason error) error {
	a.undoUnclear()
	seen := !a.busySince.IsZero()
	switch {
	case reason == ErrClosed:
		return a.fail(ErrClosed, 0)
	case seen && reason == errWaitOver && !a.hears && a.failure != nil: // what the holder does now, nobody knows
		return a.fail(unavailable(a.failure), 0)
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

// giveBack releases a grant that nobody will use.
func (a *acquisition) giveBack() {
	claim := Claim{Key: a.key(), Owner: a.token, Mode: a.rule.Mode, Undo: undoFor(a.unclear, a.rule.lease())}
	a.engine.cleaner.add(chore{claim: claim, useless: a.sent.Add(max(a.rule.lease(), claim.Undo))})
}

// undoUnclear makes sure that an unanswered acquire takes nothing.
func (a *acquisition) undoUnclear() {
	if a.unclear {
		a.giveBack()
	}
}

// retryAfter is what the holder has left, if it dies now.
func (a *acquisition) retryAfter() time.Duration {
	if a.holder.Left < 0 {
		return a.rule.TTL
	}
	return max(a.holder.Left, time.Millisecond)
}

func (a *acquisition) key() string { return a.engine.cfg.prefix + a.rule.Key }

func (a *acquisition) fail(err error, retryAfter time.Duration) error {
	return &Error{Op: OpAcquire, Key: a.rule.Key, RetryAfter: retryAfter, Err: err}
}

// outcome tells the Observer how the acquire ended.
func (a *acquisition) outcome(l *Lease, err error) Outcome {
	o := Outcome{Result: resultOf(OpAcquire, err), Err: err, Calls: a.calls, HolderMetadata: a.holder.Metadata}
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

// undoFor is how long a tombstone must stand: 0 when every acquire of the token was answered, otherwise longer than any
// late execution could matter.
func undoFor(unclear bool, lease time.Duration) time.Duration {
	if !unclear {
		return 0
	}
	return max(lease, time.Minute)
}

// unavailable wraps an error of a Store in the sentinel, unless it has a more telling one already.
func unavailable(err error) error {
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
