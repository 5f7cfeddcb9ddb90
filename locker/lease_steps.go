package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// Release gives up the lock. The lock goes to the next caller of this process, or to the server,
// which grants the lock to the next waiter in its queue. Call Release when the work is done, even
// after ctx has ended. Release uses only the values of ctx, not its cancellation. A second call
// returns the result of the first call. Release takes at most 2 s. When the server has not answered by
// then, the release is repeated in the background until it is confirmed or the lease has run out.
// [New] says for which clients Release may take longer.
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
	ctx.Done() // a nil ctx panics here, before the release has begun, so that a later call releases
	if !l.state.beginRelease() {
		return l.state.released
	}
	defer l.state.ending.Done()
	ctx, end := l.engine.cfg.observe(ctx, OpRelease, l.rule)
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
	defer func() { // deferred, because a hook of the client may panic
		if endedEarly(err) {
			l.notifyObserver(err)
		} else {
			l.notifyObserver(nil) // nil even without an answer to the release, which has ended the hold
		}
	}()
	switch {
	case l.family != nil:
		return l.family.giveUpPart(ctx, l, complete, calls)
	case l.state.end(ErrReleased):
		return l.pass(ctx, complete && l.rule.OnceFor > 0, calls)
	}
	return l.state.endError()
}

// pass hands the hold over to the next caller of this process, or releases the hold at the server.
// It stores the number of calls in calls. Without an answer, the Store's Chores repeat the release.
// The table shows the result for each answer:
//
//	released                      nil
//	not ours, after an unclear    the unclear attempt, or the other of two calls, has released it: nil;
//	attempt within the lease      with OnceFor, only if the done mark is there
//	not ours otherwise            another holder has the key, or the server forgot the lease: ErrLost
//	revoked                       ErrRevoked
func (l *Lease) pass(ctx context.Context, complete bool, sent *int) error {
	e, h := l.engine, l.hold
	e.times.recordHold(l.rule.Name, time.Since(l.state.began))
	passed, rest := e.cohorts.release(h)
	if passed {
		e.keeper.removeUser(h, l)
		return nil
	}
	release, deadline := e.keeper.retire(h)
	if complete {
		release.Claim.Complete, release.Claim.OnceFor = true, l.rule.OnceFor
	}
	defer e.post.forget(h) // after the release, so that late messages about the hold are ignored

	timer := e.timers.Start(releaseWithin)
	defer e.timers.Stop(timer)
	r := repetition{ctx: context.Background(), late: timer.C} // a release goes on when ctx ends
	var sentAt time.Time
	answered, unclear := false, false // unclear: an attempt within the lease had no clear answer
	defer func() {                    // deferred, because a hook of the client may panic
		if !answered {
			e.undo(release)
		}
		e.cohorts.leadAfterRelease(rest)
		*sent = r.calls
	}()
	g, err := r.run(func() *calls.Future {
		sentAt = time.Now()
		return e.steps.Begin(ctx, calls.Release, release.At(sentAt), nil)
	}, func(refused bool) {
		unclear = unclear || !refused && instantOf(sentAt) < deadline
		e.cohorts.leadAfterRelease(rest) // the next caller does not wait for a server that does not answer
		rest = nil
	})
	if err != nil {
		return err
	}
	answered = true
	unclear = unclear || g.Doubled && instantOf(sentAt) < deadline
	switch {
	case g.State == store.Released:
		return nil
	case unclear && (g.State == store.Done || g.State == store.NotOurs && !complete):
		return nil
	case g.State == store.Revoked:
		return revokedBecause(g.Reason)
	}
	return errTaken
}

// Extend makes the lease last at least ttl from now. It never shortens the lease. Later renewals
// ask for ttl as well, if it is longer than Rule.TTL. The lease still ends at EndAfter. The end of
// ctx ends the call, not the lease.
//
// Errors: ErrReleased, ErrLost, ErrRevoked, ErrExpired, ErrClosed; ErrInvalidRule for a ttl below
// 1 ms or above WithMaxTTL; ErrUnavailable when the server refuses for good; ctx.Err(). When Extend
// returns ErrUnavailable or ctx.Err(), the lease keeps its earlier TTL.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	ctx, end := l.engine.cfg.observe(ctx, OpExtend, l.rule)
	calls, err := 0, l.wrap(OpExtend, errPanicked)
	defer func() {
		if end != nil {
			finish(end, Outcome{Result: resultOf(OpExtend, err), Err: err, Fence: l.fence, Calls: calls})
		}
	}()
	if err = l.extend(ctx, ttl, &calls); err != nil {
		err = l.wrap(OpExtend, err)
	}
	if over := l.state.endError(); endedEarly(over) {
		l.notifyObserver(over) // the Observer is notified of the loss before the end of the call
	}
	return err
}

// extend does the work of Extend, and stores the number of calls in sent.
func (l *Lease) extend(ctx context.Context, ttl time.Duration, sent *int) error {
	e := l.engine
	switch {
	case ttl < time.Millisecond || ttl > longestTime:
		return fmt.Errorf("%w: Extend by %v; give 1ms to 10 years", ErrInvalidRule, ttl)
	case e.cfg.usable(ttl) <= 0:
		return fmt.Errorf("%w: Extend by %v: such a short lease ends before its holder learns of it; give more", ErrInvalidRule, ttl)
	case e.cfg.maxTTL != 0 && ttl > e.cfg.maxTTL:
		return fmt.Errorf("%w: Extend by %v, and this Locker's WithMaxTTL allows %v; shorten the time or raise WithMaxTTL", ErrInvalidRule, ttl, e.cfg.maxTTL)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if err := l.state.contextCause(); err != nil {
		return err
	}
	var claim *store.Claim
	var sentAt time.Time
	r := repetition{ctx: ctx, ended: l.Context().Done()}
	g, err := r.run(func() *calls.Future {
		var held bool
		if claim, sentAt, held = e.keeper.beginExtension(l.root(), ttl); !held {
			return nil
		}
		f := new(calls.Future)
		e.steps.BeginRenew(ctx, []*store.Claim{claim}, func(_ []int, grants []store.Grant) { f.Deliver(grants[0], grants[0].Err) })
		return f
	}, func(bool) {})
	*sent = r.calls
	switch {
	case err == errLeaseOver:
	case err != nil:
		return err
	case e.keeper.applyAnswer(l.hold, g, claim, sentAt):
		e.keeper.applyExtension(l.hold, ttl)
	default:
		<-r.ended // the keeper ends the Lease at once
	}
	return l.state.contextCause()
}

// A repetition sends a step of a Lease, a release or an extension, until the Store has answered it.
// The table shows how an attempt can end, and what follows:
//
//	an attempt                release              extension
//	answered                  the answer counts    the answer counts
//	refused for good          ErrUnavailable       ErrUnavailable
//	refused for now           again                again
//	unclear                   again                again
//	no answer when
//	  the lease ends          (ended before)       how it ended
//	  ctx ends                (not used)           ctx.Err()
//	  releaseWithin is over   ErrUnavailable       –
type repetition struct {
	ctx   context.Context
	ended <-chan struct{}  // closed when the lease has ended; nil for a release, which comes after the end
	late  <-chan time.Time // fires when the time for the step is over

	last  error // the error of the last attempt
	calls int
}

// errLeaseOver is the result of a repetition that stopped because its lease has ended.
var errLeaseOver = errors.New("the lease has ended")

// run repeats the step, and returns the answer, or the error with which the step ends without one.
// send sends an attempt. It sends nothing and returns nil if a Release has begun, which ends the
// lease. failed is called when an attempt has no answer; refused means that it had no effect.
func (r *repetition) run(send func() *calls.Future, failed func(refused bool)) (store.Grant, error) {
	r.last = errNoAnswer
	g, again, err := r.attempt(send, failed)
	if !again {
		return g, err
	}
	for pause := range calls.BetweenRepeats { // without an end
		if err = r.wait(nil, time.After(pause)); err != nil {
			break
		}
		if g, again, err = r.attempt(send, failed); !again {
			break
		}
	}
	return g, err
}

// attempt sends the step once, and reports whether it is sent again.
func (r *repetition) attempt(send func() *calls.Future, failed func(refused bool)) (g store.Grant, again bool, err error) {
	q := send()
	if q == nil {
		<-r.ended
		return g, false, errLeaseOver
	}
	r.calls++
	if err = r.wait(q.Answered(), nil); err != nil {
		q.Abandon()
		failed(false)
		return g, false, err
	}
	if g, err = q.Answer(); err == nil {
		return g, false, nil
	}
	r.last = err
	no, refused := errors.AsType[*store.Refusal](err)
	failed(refused)
	return g, !refused || no.Temporary, asUnavailable(err)
}

// wait waits until answerReady is signalled, or until pause fires. If the step must stop first, wait
// returns the reason.
func (r *repetition) wait(answerReady <-chan struct{}, pause <-chan time.Time) error {
	select {
	case <-answerReady:
		return nil
	case <-pause:
		return nil
	case <-r.ended:
		return errLeaseOver
	case <-r.ctx.Done():
		return r.ctx.Err()
	case <-r.late:
		return asUnavailable(r.last)
	}
}
