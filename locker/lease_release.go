package locker

import (
	"context"
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// Release gives up the lock. The lock goes to the next caller of this process, or to the server,
// which grants the lock to the next waiter in its queue. Call Release when the work is done, even
// after ctx has ended. Release uses only the values of ctx, not its cancellation, and takes nil for
// context.Background(). If ctx panics, the lock is released all the same. A second call returns the
// result of the first call. Release takes at most 2 s. When the server has not answered by then,
// the release is repeated in the background until it is confirmed or the lease has run out. [New]
// says for which clients Release may take longer.
//
// Errors: ErrLost, ErrRevoked or ErrExpired when the lease had ended before; ErrUnavailable when
// there is no answer.
func (l *Lease) Release(ctx context.Context) error { return l.release(ctx, false) }

// Complete releases the lock after the work has succeeded. With Rule.OnceFor, the step that
// releases the lock also marks the work as done. Without OnceFor, Complete does the same as
// Release.
func (l *Lease) Complete(ctx context.Context) error { return l.release(ctx, true) }

// release releases the lock; with complete, it also marks the work as done.
func (l *Lease) release(ctx context.Context, complete bool) error {
	if !l.state.beginRelease() {
		return l.state.released
	}
	var end func(Outcome)
	begun := false
	defer func() {
		if !begun { // ctx has panicked; the panic continues, but nobody could release the lock later
			l.finishRelease(context.Background(), false, end)
		}
		l.state.endRelease()
	}()
	// An Observer looks up values in ctx. Through a context of WithoutCancel, each lookup would
	// allocate memory, so observe gets ctx before WithoutCancel is applied.
	ctx, end = l.engine.cfg.observe(ctx, OpRelease, l.rule)
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	begun = true
	l.finishRelease(ctx, complete, end)
	return l.state.released
}

// finishRelease gives up the lock, records the result of the release, and tells it to the Observer.
func (l *Lease) finishRelease(ctx context.Context, complete bool, end func(Outcome)) {
	calls := 0
	if err := l.giveUp(ctx, complete, &calls); err != nil {
		l.state.released = l.wrap(OpRelease, err)
	}
	if end != nil {
		o := l.outcome(OpRelease, l.state.released)
		o.Calls = calls
		finish(end, o)
	}
}

// giveUp ends the Lease by a release, and stores the number of calls in calls. If the Lease had
// ended before, giveUp returns how the Lease ended.
func (l *Lease) giveUp(ctx context.Context, complete bool, calls *int) (err error) {
	defer func() { // deferred, because a hook of the client may panic
		if endedEarly(err) {
			l.notifyObserver(err)
		} else {
			l.notifyObserver(nil) // nil even without an answer to the release, which has ended the hold
		}
	}()
	switch {
	case l.part != nil:
		return l.part.giveUpPart(ctx, l, complete, calls)
	case l.state.end(ErrReleased):
		return l.pass(ctx, complete && l.rule.OnceFor > 0, calls)
	}
	return l.state.endError()
}

// pass hands the hold over to the next caller of this process, or releases the hold at the server.
// It stores the number of calls in calls.
func (l *Lease) pass(ctx context.Context, complete bool, calls *int) error {
	e, h := l.engine, l.hold
	e.times.recordHold(l.rule.Name, time.Since(l.state.began))
	passed, rest := e.cohorts.release(h)
	if passed {
		e.keeper.removeUser(h, l)
		return nil
	}
	release, deadline := e.keeper.retire(h)
	defer e.post.forget(h) // after the release, so that late messages about the hold are ignored

	timer := e.timers.Start(releaseWithin)
	defer e.timers.Stop(timer)
	r := &releasing{engine: e, chore: release, deadline: deadline}
	r.repetition = repetition{step: r, ctx: ctx, late: timer.C}
	if complete {
		r.chore.Claim.Complete, r.chore.Claim.OnceFor = true, l.rule.OnceFor
	}
	v, err := stopped, error(nil)
	defer func() { // deferred, because a hook of the client may panic
		if v == stopped {
			// The caller waits no longer for an answer, so the Store's Chores repeat the release.
			e.undo(r.chore)
		}
		e.cohorts.leadAfterRelease(rest) // a new leader may ask now
		*calls = r.calls
	}()
	v, err = r.run()
	return err
}

// releasing is the repeated step of Release. The table shows the result for each answer:
//
//	released                      nil
//	not ours, after an unclear    the unclear attempt has released it: nil; with OnceFor, only if the
//	attempt within the lease      done mark is there
//	not ours otherwise            another holder has the key, or the server forgot the lease: ErrLost
//	revoked                       ErrRevoked
type releasing struct {
	repetition
	engine   *Engine
	chore    calls.Chore
	deadline instant

	sentAt  time.Time // when the last attempt was sent
	earlier bool      // an earlier attempt had no clear answer, and was sent before the lease ended
}

func (r *releasing) begin() (*calls.Future, bool) {
	r.sentAt = time.Now()
	return r.engine.steps.Begin(r.ctx, calls.Release, r.chore.At(r.sentAt), nil), true
}

func (r *releasing) applyAnswer(g store.Grant) error {
	switch {
	case g.State == store.Released:
		return nil
	case r.earlier && (g.State == store.Done || g.State == store.NotOurs && !r.chore.Claim.Complete):
		return nil
	case g.State == store.Revoked:
		return revokedBecause(g.Reason)
	}
	return errTaken
}

func (r *releasing) noteFailure(_ error, unclear bool) {
	if unclear {
		r.earlier = r.earlier || instantOf(r.sentAt) < r.deadline
	}
}

// repeated is a step that a Lease sends again until the Store has answered it: a release or an
// extension. The table shows how an attempt can end, and the consequence for each step:
//
//	an attempt                release              extension
//	answered                  nil, or how the lease ended: see applyAnswer of each step
//	refused for good          ErrUnavailable       ErrUnavailable
//	refused for now           again                again
//	unclear                   again                again
//	no answer when
//	  the lease ends          (ended before)       how it ended
//	  ctx ends                (not used)           ctx.Err()
//	  releaseWithin is over   ErrUnavailable       –
//
// If a release ends with ErrUnavailable, the Store's Chores repeat it in the background.
type repeated interface {
	// begin sends an attempt. begin sends nothing and returns false if a Release has begun,
	// because the Release ends the Lease.
	begin() (*calls.Future, bool)
	// applyAnswer applies g, the Store's answer, and returns the result of the step.
	applyAnswer(g store.Grant) error
	// noteFailure is called when an attempt has no answer. If unclear is true, the server may have
	// executed the attempt, or may still do so.
	noteFailure(err error, unclear bool)
}

// repetition sends a step until the Store has answered it or something stops it.
type repetition struct {
	step  repeated
	lease *Lease           // the step stops when this lease ends; nil for a release, which comes after the end
	ctx   context.Context  // the step stops when ctx ends
	late  <-chan time.Time // fires when the time for the step is over

	ended <-chan struct{} // closed when the Lease has ended
	last  error           // the error of the last attempt
	calls int
}

// A verdict shows whether a step is repeated, and if not, why.
type verdict uint8

const (
	again   verdict = iota
	settled         // the Store has answered
	stopped         // the step ends without an answer of the Store
)

// run repeats the step, and returns its result.
func (r *repetition) run() (verdict, error) {
	r.last = errNoAnswer
	if r.lease != nil {
		r.ended = r.lease.Context().Done()
	}
	if v, err := r.attempt(); v != again {
		return v, err
	}
	return r.repeat()
}

// repeat sends the step again after each pause. It is separate from run because most steps need no
// iterator.
func (r *repetition) repeat() (verdict, error) {
	for pause := range calls.BetweenRepeats {
		if ok, err := r.wait(nil, time.After(pause)); !ok {
			return stopped, err
		}
		if v, err := r.attempt(); v != again {
			return v, err
		}
	}
	return stopped, nil // not reached, because BetweenRepeats has no end
}

// attempt sends the step once.
func (r *repetition) attempt() (verdict, error) {
	q, ok := r.step.begin()
	if !ok {
		<-r.ended
		return stopped, r.lease.state.contextCause()
	}
	r.calls++
	if ok, err := r.wait(q.Answered(), nil); !ok {
		q.Abandon()
		r.step.noteFailure(errNoAnswer, true)
		return stopped, err
	}
	g, err := q.Answer()
	if err == nil {
		return settled, r.step.applyAnswer(g)
	}
	r.last = err
	no, refused := errors.AsType[*store.Refusal](err)
	r.step.noteFailure(err, !refused)
	if refused && !no.Temporary {
		return stopped, asUnavailable(err)
	}
	return again, nil
}

// wait waits until answerReady is signalled, or until pause fires at the end of a pause. If the
// step must stop first, wait returns false and the result of the step.
func (r *repetition) wait(answerReady <-chan struct{}, pause <-chan time.Time) (bool, error) {
	select {
	case <-answerReady:
		return true, nil
	case <-pause:
		return true, nil
	case <-r.ended:
		return false, r.lease.state.contextCause()
	case <-r.ctx.Done():
		return false, r.ctx.Err()
	case <-r.late:
		return false, asUnavailable(r.last)
	}
}

// change makes one change of the Lease by calling step, which repeats its calls until the server
// answers. It notifies the Observer of op.
func (l *Lease) change(ctx context.Context, op Op, step func(ctx context.Context, calls *int) error) error {
	ctx, end := l.engine.cfg.observe(ctx, op, l.rule)
	calls, returned := 0, false
	defer func() {
		if !returned && end != nil {
			finish(end, Outcome{Result: ResultError, Err: l.wrap(op, errPanicked), Fence: l.fence, Calls: calls})
		}
	}()
	err := step(ctx, &calls)
	returned = true
	if over := l.state.endError(); endedEarly(over) {
		l.notifyObserver(over) // the Observer is notified of the loss before the end of op
	}
	if err != nil {
		err = l.wrap(op, err)
	}
	if end != nil {
		finish(end, Outcome{Result: resultOf(op, err), Err: err, Fence: l.fence, Calls: calls})
	}
	return err
}
