package locker

import (
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// goOn returns (lease, err) if it has a lease or an error. Otherwise it waits and asks again
// until there is a lease or an error.
func (a *acquisition) goOn(lease *Lease, err error) (*Lease, error) {
	for lease == nil && err == nil {
		lease, err = a.wait()
	}
	return lease, err
}

// ask asks the Store once. If ask returns neither a lease nor an error, the caller of ask asks
// again.
func (a *acquisition) ask() (*Lease, error) {
	a.waiting.calls++
	a.ticket.sentAt = a.caller.began
	// If the caller has waited, or may have subscribed, this call is sent later than caller.began.
	if a.waiting.calls > 1 || a.turn != nil || a.caller.rule.Mode == Shared {
		a.ticket.sentAt = time.Now()
	}
	if a.ticket.token.ask() {
		a.ticket.firstSent = a.ticket.sentAt
	}
	if a.waiting.asked.IsZero() {
		a.waiting.asked = a.ticket.sentAt
	}
	return a.awaitAnswer(a.caller.engine.steps.Begin(a.caller.observed, calls.Acquire, a.ticket.claim, nil))
}

// awaitAnswer waits for the answer to the question q, and acts on it. It may return neither a lease
// nor an error, as ask does.
func (a *acquisition) awaitAnswer(q *calls.Future) (*Lease, error) {
	wasCurrent := a.ticket.current
	a.ticket.current = false
	silence, end := a.silence()
	defer end()
	w, rung := awaited{answer: q.Answered(), bell: a.ticket.box.bell, silence: silence}, false
	defer func() {
		if rung {
			a.ticket.box.ring() // rings again, because the mailbox was not read yet
		}
	}()
	for {
		switch e, over := a.caller.await(&w); e {
		case answerCame:
			g, err := q.Answer()
			if err != nil {
				return nil, a.handleError(err)
			}
			return a.handleAnswer(g)
		// The message of a grant may come before the answer, which usually follows at once. So it
		// is cheaper to wait for the answer than to abandon the call.
		case bellRang:
			rung = true
			if _, granted := a.caller.engine.post.grantIn(&a.ticket.box); granted {
				timer := a.caller.engine.timers.Start(freshGrant / 2)
				defer a.caller.engine.timers.Stop(timer)
				w.timer, w.bell = timer.C, nil
			}
		case timerFired:
			if e, granted := a.caller.engine.post.grantIn(&a.ticket.box); granted {
				if _, certain := a.ticket.grantTime(a.caller.engine, e); certain {
					q.Abandon()
					a.ticket.token.endCall(callLost)
					return a.takeGrant(e)
				}
			}
		case silenceOver:
			return nil, a.abandonQuestion(q, errNoAnswer, wasCurrent)
		default:
			return nil, a.abandonQuestion(q, over, wasCurrent)
		}
	}
}

// abandonQuestion gives up the question q, which has no answer yet, for the given reason. It
// returns nil if the caller asks again. The parameter wasCurrent is true if the previous answer was
// still recent when this question was sent.
func (a *acquisition) abandonQuestion(q *calls.Future, reason error, wasCurrent bool) error {
	if q.Abandon() {
		a.ticket.token.endCall(callLost)
	} else {
		a.ticket.token.endCall(callNotSent)
	}
	if reason == errNoAnswer {
		return a.handleNoAnswer(reason)
	}
	if time.Since(a.ticket.sentAt) > freshGrant {
		a.waiting.failure = errNoAnswer
	} else {
		a.ticket.current = wasCurrent // the last answer is recent enough for the error
	}
	return a.giveUp(reason)
}

// handleAnswer acts on g, the Store's answer to an acquire. It may return neither a lease nor an
// error, as ask does.
func (a *acquisition) handleAnswer(g store.Grant) (*Lease, error) {
	a.waiting.rounds += g.Rounds
	if a.waiting.polled {
		a.waiting.polled = false
		a.caller.engine.times.recordAttempt(a.caller.rule.Name, g.State == store.Granted)
	}
	a.ticket.token.endCall(a.ticket.eventOf(g))
	switch g.State {
	case store.Granted:
		a.waiting.confirmHandoff(&a.caller, a.ticket, g.Fence)
		return a.newLease(g, a.ticket.sentAt, 0)
	case store.Busy:
		a.noteBusy(g)
		if a.caller.rule.Wait == NoWait {
			return nil, a.giveUp(errWaitOver)
		}
		return nil, nil
	case store.Done:
		return nil, a.fail(ErrDone, 0)
	// An earlier call was granted but its answer was lost, and then an operator revoked the
	// lease.
	case store.Revoked:
		return nil, a.fail(revokedBecause(g.Reason), 0)
	default: // for example Undone, which is the answer only to a token that was given up
		return nil, a.fail(fmt.Errorf("%w: unexpected answer %q to an acquire", ErrUnavailable, g.State), 0)
	}
}

// eventOf converts g, an answer of the Store, to an event of the token.
func (t *ticket) eventOf(g store.Grant) tokenEvent {
	switch {
	case g.State == store.Granted:
		return answerGranted
	case g.State != store.Busy:
		return answerOver
	case t.claim.Queue:
		return answerQueued
	case g.Unsettled:
		return answerParts
	}
	return answerAside
}

// noteBusy records what the answer g shows: the holder and the place in the queue.
func (a *acquisition) noteBusy(g store.Grant) {
	a.ticket.holder, a.ticket.place, a.ticket.notListening, a.ticket.current = g.Holder, g.Place, g.NotListening, true
	a.ticket.clock = anchor{local: a.ticket.sentAt, server: g.At}
	a.waiting.ahead = max(g.Place-1, 0)
	// A semaphore has several holders, and the first of them is not always the first to release
	// its permit.
	if a.caller.rule.Limit == 0 {
		a.waiting.heldSince = holdsSince(g.Holder, g.At, a.ticket.sentAt)
	}
	a.waiting.noteMet(&a.caller, peer(g.Holder.Fence, g.Holder.Metadata))
	if a.caller.rule.Wait != NoWait {
		a.waiting.noteWait(&a.caller, g.Place)
	}
	if a.waiting.busySince.IsZero() {
		a.waiting.busySince = a.ticket.sentAt
		if d, ok := a.caller.engine.times.meanHold(a.caller.rule.Name, enoughHolds); ok {
			a.waiting.expected = d * time.Duration(max(a.ticket.place, 1)) / time.Duration(a.caller.rule.maxHolders())
		}
	}
	if a.cohort != nil {
		a.caller.engine.cohorts.noteBusy(a)
	}
	if a.ticket.notListening {
		a.caller.engine.post.resubscribe(a.ticket.claim.Inbox)
	}
}

// newLease makes the lease of the grant g. The deadline counts from start, a time that is no later
// than the grant. If the grant came by message, handoffTTL is how long the server keeps the lease.
// If the grant came in a reply, handoffTTL is 0. If the caller has left before the grant arrives,
// newLease returns an error, and cleanUp gives the lock back.
func (a *acquisition) newLease(g store.Grant, start time.Time, handoffTTL time.Duration) (*Lease, error) {
	e := a.caller.engine
	ttl := a.ticket.claim.TTL // of the caller that has begun the ticket, not of its successor
	life := ttl
	if handoffTTL > 0 {
		life = handoffTTL
	}
	deadline := start.Add(life - e.cfg.drift(life))
	if gone := a.caller.ctx.Err(); gone != nil {
		return nil, a.fail(gone, 0)
	}
	now := time.Now()
	if !now.Before(deadline) {
		a.renewTicket()
		return nil, a.handleNoAnswer(fmt.Errorf("the answer arrived after the lease of %v had ended; raise the TTL", ttl))
	}
	f := new(holdWithLease)
	f.hold = hold{
		engine: e, claim: a.ticket.claim, fence: g.Fence, block: int32(g.FenceCount), ttl: ttl, start: instantOf(start), received: instantOf(now),

		unclear: a.ticket.token.state == tokenUnclear, posted: a.ticket.expected, cohort: a.cohort, signed: a.caller.meta,
		renewal: renewal{renewTTL: ttl, longest: ttl, handoffTTL: handoffTTL, adaptive: a.caller.adaptive},
	}
	f.hold.renewal.deadline.store(instantOf(deadline))
	if a.caller.rule.EndAfter != 0 {
		f.hold.renewal.atMostEnd = instantOf(start).plus(a.caller.rule.EndAfter)
	}
	if a.caller.rule.KeepFor != 0 {
		f.hold.keepUntil = instantOf(now).plus(a.caller.rule.KeepFor)
	}
	if a.caller.rule.Mode == Shared {
		f.hold.claim.Fence = g.Fence
	}
	f.lease.init(a, &f.hold, g.Fence)
	if a.cohort != nil {
		// This call must come before the hold is in the schedule, because the keeper may then
		// report a loss of the hold to the cohort.
		e.cohorts.setHold(&f.hold)
		// A semaphore's cohort has got its next leader in setHold.
		a.leads = a.leads && a.caller.rule.Limit == 0
	}
	writer := g.Writer
	if a.ticket.expected {
		writer = e.post.ignore(a.ticket.claim.Owner) || writer
	}
	if !e.keeper.add(&f.hold, &f.lease, start) {
		f.lease.notifyObserver(ErrClosed)
		return nil, a.fail(ErrClosed, 0)
	}
	if a.caller.rule.Mode == Shared {
		e.cohorts.letIn(&f.hold, writer)
	}
	return &f.lease, nil
}
