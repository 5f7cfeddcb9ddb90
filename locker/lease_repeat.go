package locker

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// repeated is a step that a Lease sends again until the Store has answered it: a release, an
// extension or a downgrade. The table shows how an attempt can end, and the consequence for each
// step:
//
//	an attempt                release              extension        downgrade
//	answered                  nil, or how the lease ended: see applyAnswer of each step
//	refused for good          ErrUnavailable       ErrUnavailable   ErrUnavailable
//	refused for now           again                again            again
//	unclear                   again                again            again; it counts as Shared
//	no answer when
//	  the lease ends          (ended before)       how it ended     how it ended
//	  ctx ends                (not used)           ctx.Err()        ctx.Err(); it counts as Shared
//	  releaseWithin is over   ErrUnavailable       –                –
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
	no, refused := errtype.As[*store.Refusal](err)
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
	calls := 0
	err := step(ctx, &calls)
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
