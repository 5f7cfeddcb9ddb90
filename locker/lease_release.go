package locker

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// releaseWithin is the longest time for which Release and Complete wait for the server's answer.
const releaseWithin = 2 * time.Second

// Release gives up the lock. The lock goes to the next caller of this process, or to the server,
// which grants the lock to the next waiter in its queue. Call Release when the work is done, even
// after ctx has ended. Release uses only the values of ctx, not its cancellation. A second call
// returns the result of the first call. Release takes at most 2 s. When the server has not answered
// by then, the release is repeated in the background until it is confirmed or the lease has run
// out.
//
// Errors: ErrLost, ErrRevoked or ErrExpired when the lease had ended before; ErrUnavailable when
// there is no answer.
func (l *Lease) Release(ctx context.Context) error { return l.release(ctx, false, false) }

// Complete releases the lock after the work has succeeded. With Rule.OnceFor, the step that
// releases the lock also marks the work as done. Without OnceFor, Complete does the same as
// Release.
func (l *Lease) Complete(ctx context.Context) error { return l.release(ctx, true, false) }

// release releases the lock; with complete, it also marks the work as done. If inBackground is true
// and the Locker has WithBackgroundRelease, release may return before the server has answered.
func (l *Lease) release(ctx context.Context, complete, inBackground bool) error {
	if !l.state.beginRelease() {
		return l.state.released
	}
	defer l.state.endRelease()

	// An Observer looks up values in ctx. Through a context of WithoutCancel, each lookup would
	// allocate memory, so observe gets ctx before WithoutCancel is applied.
	ctx, end := l.engine.cfg.observe(ctx, OpRelease, l.rule)
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	if inBackground && l.releaseInBackground(ctx, end) {
		return nil
	}
	calls := 0
	if err := l.giveUp(ctx, complete, &calls); err != nil {
		l.state.released = l.wrap(OpRelease, err)
	}
	if end != nil {
		o := l.outcome(OpRelease, l.state.released)
		o.Calls = calls
		finish(end, o)
	}
	return l.state.released
}

// giveUp ends the Lease by a release, and stores the number of calls in calls. If the Lease had
// ended before, giveUp returns how the Lease ended.
func (l *Lease) giveUp(ctx context.Context, complete bool, calls *int) (err error) {
	switch {
	case l.part != nil:
		err = l.part.giveUpPart(ctx, l, complete, calls)
	case l.state.end(ErrReleased):
		err = l.pass(ctx, complete && l.rule.OnceFor > 0, calls)
	default:
		err = l.state.endError()
	}
	if endedEarly(err) {
		l.notifyObserver(err)
	} else {
		l.notifyObserver(nil) // nil even without an answer to the release, which has ended the hold
	}
	return err
}

// pass hands the hold over to the next caller of this process, or releases the hold at the server.
// It stores the number of calls in calls.
func (l *Lease) pass(ctx context.Context, complete bool, calls *int) error {
	e, h := l.engine, l.hold
	now := time.Now()
	e.times.recordHold(l.rule.Name, now.Sub(l.state.began))
	passed, rest := e.cohorts.release(h)
	if passed {
		e.keeper.removeUser(h, l)
		return nil
	}
	release, deadline, _ := e.keeper.retire(h)
	defer e.post.forget(h) // after the release, so that late messages about the hold are ignored

	timer := e.timers.Start(releaseWithin)
	defer e.timers.Stop(timer)
	r := &releasing{engine: e, chore: release, deadline: deadline}
	r.repetition = repetition{step: r, ctx: ctx, late: timer.C}
	if complete {
		r.chore.Claim.Complete, r.chore.Claim.OnceFor = true, l.rule.OnceFor
	}
	if rest != nil && e.canFollow(h.claim.Key) {
		r.next = e.cohorts.leadBeforeRelease(rest).follow(now)
		rest = nil
	}
	v, err := r.run()
	if v == stopped {
		// The caller waits no longer for an answer, so the Store's Chores repeat the release.
		e.undo(r.chore)
	}
	e.cohorts.leadAfterRelease(rest) // a new leader may ask now
	*calls = r.calls
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
	next     *follow // the acquire that goes out with the first attempt only: see follow

	sentAt  time.Time // when the last attempt was sent
	earlier bool      // an earlier attempt had no clear answer, and was sent before the lease ended
}

func (r *releasing) begin() (*calls.Future, bool) {
	r.sentAt = time.Now()
	claim := r.chore.At(r.sentAt)
	if r.next != nil {
		claim.Next = &r.next.ticket.claim
	}
	return r.engine.steps.Begin(r.ctx, calls.Release, claim, nil), true
}

func (r *releasing) applyAnswer(g store.Grant) error {
	r.resolveNext(g, nil)
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

func (r *releasing) noteFailure(err error, unclear bool) {
	r.resolveNext(store.Grant{}, err)
	if unclear {
		r.earlier = r.earlier || instantOf(r.sentAt) < r.deadline
	}
}

// resolveNext passes the answer (g, err) of the first attempt to the acquire that went out with
// this attempt.
func (r *releasing) resolveNext(g store.Grant, err error) {
	if r.next != nil {
		r.next.receive(g, err)
		r.next = nil
	}
}
