package locker

import (
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// lead asks the Store until there is a lease or a reason to stop. If q is not nil, q is a
// question that is on its way already.
func (a *acquisition) lead(q calls.Question) (*Lease, error) {
	if q != nil {
		return a.goOn(a.awaitAnswer(q))
	}
	return a.goOn(a.ask())
}

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
	a.calls++
	a.sentAt = a.began
	// If the caller has waited, or may have subscribed, this call is sent later than a.began.
	if a.calls > 1 || a.turn != nil || a.rule.Mode == Shared {
		a.sentAt = time.Now()
	}
	if a.token.ask() {
		a.firstSent = a.sentAt
	}
	return a.awaitAnswer(a.engine.steps.BeginAcquire(a.ctx, a.claim))
}

// awaitAnswer waits for the answer to the question q, and acts on it. It may return neither a lease
// nor an error, as ask does.
func (a *acquisition) awaitAnswer(q calls.Question) (*Lease, error) {
	wasCurrent := a.current
	a.current = false
	var reason error
	bell, late, rung := a.box.bell, (<-chan time.Time)(nil), false
	silence, end := a.engine.silence()
	defer end()
	defer func() {
		if rung {
			a.box.ring() // rings again, because the mailbox was not read yet
		}
	}()
	for reason == nil {
		select {
		case <-q.Answered():
			g, err := q.Answer()
			if err == errNotQueued {
				a.token.endCall(callNotSent)
				return a.ask()
			}
			if err != nil {
				return nil, a.handleError(err)
			}
			return a.handleAnswer(g)
		// The message of a grant may come before the answer, which usually follows at once. So it
		// is cheaper to wait for the answer than to abandon the call.
		case <-bell:
			rung = true
			if _, granted := a.engine.post.grantIn(&a.box); granted {
				timer := a.engine.timers.Start(freshGrant / 2)
				defer a.engine.timers.Stop(timer)
				late, bell = timer.C, nil
			}
		case <-late:
			if e, granted := a.engine.post.grantIn(&a.box); granted && a.isCertain(e) {
				q.Abandon()
				a.token.endCall(callLost)
				return a.takeGrant(e)
			}
		case <-silence:
			reason = errNoAnswer
		case <-a.caller.Done():
			reason = a.caller.Err()
		case <-a.expiry:
			reason = errWaitOver
		case <-a.engine.closing:
			reason = ErrClosed
		}
	}
	return nil, a.abandonQuestion(q, reason, wasCurrent)
}

// abandonQuestion gives up the question q, which has no answer yet, for the given reason. It
// returns nil if the caller asks again. The parameter wasCurrent is true if the previous answer was
// still recent when this question was sent.
func (a *acquisition) abandonQuestion(q calls.Question, reason error, wasCurrent bool) error {
	if q.Abandon() {
		a.token.endCall(callLost)
	} else {
		a.token.endCall(callNotSent)
	}
	if reason == errNoAnswer {
		return a.handleNoAnswer(reason)
	}
	if time.Since(a.sentAt) > freshGrant {
		a.failure = errNoAnswer
	} else {
		a.current = wasCurrent // the last answer is recent enough for the error
	}
	return a.giveUp(reason)
}

// handleAnswer acts on g, the Store's answer to an acquire. It may return neither a lease nor an
// error, as ask does.
func (a *acquisition) handleAnswer(g store.Grant) (*Lease, error) {
	a.rounds += g.Rounds
	if a.polled {
		a.polled = false
		a.engine.times.recordAttempt(a.rule.Name, g.State == store.Granted)
	}
	a.token.endCall(a.eventOf(g))
	switch g.State {
	case store.Granted:
		a.confirmHandoff(g.Fence)
		return a.newLease(g, a.sentAt, 0)
	case store.Busy:
		a.noteBusy(g)
		if a.rule.Wait == NoWait {
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
func (a *acquisition) eventOf(g store.Grant) tokenEvent {
	switch {
	case g.State == store.Granted:
		return answerGranted
	case g.State != store.Busy:
		return answerOver
	case a.claim.Queue:
		return answerQueued
	case g.Unsettled:
		return answerParts
	}
	return answerAside
}

// noteBusy records what the answer g shows: the holder and the place in the queue.
func (a *acquisition) noteBusy(g store.Grant) {
	a.holder, a.place, a.notListening, a.current = g.Holder, g.Place, g.NotListening, true
	a.clock = anchor{local: a.sentAt, server: g.At}
	// A semaphore has several holders, and the first of them is not always the first to release
	// its permit.
	if a.rule.Limit == 0 {
		a.heldSince = holdsSince(g.Holder, g.At, a.sentAt)
	}
	a.noteMet(peer(g.Holder.Fence, g.Holder.Metadata))
	if a.rule.Wait != NoWait {
		a.noteWait(g.Place)
	}
	if a.busySince.IsZero() {
		a.busySince = a.sentAt
		if d, ok := a.engine.times.estimate(a.rule.Name); ok {
			a.expectedWait = d * time.Duration(max(a.place, 1)) / time.Duration(a.rule.maxHolders())
		}
	}
	if a.cohort != nil {
		a.engine.cohorts.noteBusy(a)
	}
	if a.notListening {
		a.engine.post.resubscribe(a.claim.Inbox)
	}
}

// newLease makes the lease of the grant g. The deadline counts from start, a time that is no later
// than the grant. If the grant came by message, handoffTTL is how long the server keeps the lease.
// If the grant came in a reply, handoffTTL is 0. If the caller has left before the grant arrives,
// newLease gives the lock back.
func (a *acquisition) newLease(g store.Grant, start time.Time, handoffTTL time.Duration) (*Lease, error) {
	e := a.engine
	ttl := a.rule.leaseTTL()
	life := ttl
	if handoffTTL > 0 {
		life = handoffTTL
	}
	deadline := start.Add(life - e.cfg.drift(life))
	if gone := a.caller.Err(); gone != nil {
		return nil, a.fail(gone, 0)
	}
	now := time.Now()
	if !now.Before(deadline) {
		a.renewTicket()
		return nil, a.handleNoAnswer(fmt.Errorf("the answer arrived after the lease of %v had ended; raise the TTL", ttl))
	}
	f := new(holdWithLease)
	f.hold = hold{
		engine: e, claim: a.claim, fence: g.Fence, block: int32(g.FenceCount), ttl: ttl, start: instantOf(start), received: instantOf(now),

		unclear: a.token.state == tokenUnclear, posted: a.expected, cohort: a.cohort, signed: a.meta, contended: !a.busySince.IsZero() || handoffTTL > 0,
		renewal: renewal{renewTTL: ttl, longest: ttl, deadline: instantOf(deadline), handoffTTL: handoffTTL, adaptive: a.adaptive},
	}
	if a.rule.AtMost != 0 {
		f.hold.atMostEnd = instantOf(start).plus(a.rule.AtMost)
	}
	if a.rule.AtLeast != 0 {
		f.hold.keepUntil = instantOf(now).plus(a.rule.AtLeast)
	}
	if a.rule.Mode == Shared {
		f.hold.claim.Fence = g.Fence
	}
	f.lease.init(a, &f.hold, g.Fence)
	if a.cohort != nil {
		// This call must come before the hold is in the schedule, because the keeper may then
		// report a loss of the hold to the cohort.
		e.cohorts.setHold(&f.hold)
		a.leads = a.leads && a.rule.Limit == 0
	}
	writer := g.Writer
	if a.expected {
		writer = e.post.ignore(a.claim.Owner) || writer
	}
	if !e.keeper.add(&f.hold, &f.lease) {
		f.lease.notifyObserver(ErrClosed)
		return nil, a.fail(ErrClosed, 0)
	}
	if a.rule.Mode == Shared {
		e.cohorts.letIn(&f.hold, writer)
	}
	return &f.lease, nil
}
