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
		return a.goOn(a.await(q))
	}
	return a.goOn(a.ask())
}

func (a *acquisition) goOn(lease *Lease, err error) (*Lease, error) {
	for lease == nil && err == nil {
		lease, err = a.wait()
	}
	return lease, err
}

// ask asks the Store once. If ask returns neither a lease nor an error, the caller asks again.
func (a *acquisition) ask() (*Lease, error) {
	a.calls++
	a.sent = a.began
	// If the caller has waited, or may have subscribed, this call is sent later than a.began.
	if a.calls > 1 || a.turn != nil || a.rule.Mode == Shared {
		a.sent = time.Now()
	}
	if a.token.ask() {
		a.first = a.sent
	}
	return a.await(a.engine.steps.BeginAcquire(a.ctx, a.claim))
}

func (a *acquisition) await(q calls.Question) (*Lease, error) {
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
				a.token.ended(callNotSent)
				return a.ask()
			}
			if err != nil {
				return nil, a.handleError(err)
			}
			return a.answered(g)
		// The message of a grant may come before the answer, which usually follows at once. So it
		// is cheaper to wait for the answer than to abandon the call.
		case <-bell:
			rung = true
			if _, granted := a.engine.post.granted(&a.box); granted {
				timer := a.engine.timers.Start(freshGrant / 2)
				defer a.engine.timers.Stop(timer)
				late, bell = timer.C, nil
			}
		case <-late:
			if e, granted := a.engine.post.granted(&a.box); granted && a.certain(e) {
				q.Abandon()
				a.token.ended(callLost)
				return a.handed(e)
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
	return nil, a.leave(q, reason, wasCurrent)
}

// leave gives up a question that has no answer yet, for the given reason. It returns nil if the
// caller asks again. wasCurrent is true if the previous answer was still recent when this
// question was sent.
func (a *acquisition) leave(q calls.Question, reason error, wasCurrent bool) error {
	if q.Abandon() {
		a.token.ended(callLost)
	} else {
		a.token.ended(callNotSent)
	}
	if reason == errNoAnswer {
		return a.unanswered(reason)
	}
	if time.Since(a.sent) > freshGrant {
		a.failure = errNoAnswer
	} else {
		a.current = wasCurrent // the last answer is recent enough for the error
	}
	return a.giveUp(reason)
}

func (a *acquisition) answered(g store.Grant) (*Lease, error) {
	a.rounds += g.Rounds
	if a.polled {
		a.polled = false
		a.engine.times.polled(a.rule.Name, g.State == store.Granted)
	}
	a.token.ended(a.eventOf(g))
	switch g.State {
	case store.Granted:
		a.confirmed(g.Fence)
		return a.newLease(g, a.sent, 0)
	case store.Busy:
		a.busy(g)
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

// eventOf converts an answer of the Store to an event of the token.
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

// busy records the holder and the place in the queue.
func (a *acquisition) busy(g store.Grant) {
	a.holder, a.place, a.notListening, a.current = g.Holder, g.Place, g.NotListening, true
	a.clock = anchor{local: a.sent, server: g.At}
	// A semaphore has several holders, and the first of them is not always the first to release
	// its permit.
	if a.rule.Limit == 0 {
		a.heldSince = holdsSince(g.Holder, g.At, a.sent)
	}
	a.meets(peer(g.Holder.Fence, g.Holder.Metadata))
	if a.rule.Wait != NoWait {
		a.waits(g.Place)
	}
	if a.busySince.IsZero() {
		a.busySince = a.sent
		if d, ok := a.engine.times.estimate(a.rule.Name); ok {
			a.expects = d * time.Duration(max(a.place, 1)) / time.Duration(a.rule.together())
		}
	}
	if a.cohort != nil {
		a.engine.cohorts.busy(a)
	}
	if a.notListening {
		a.engine.post.resubscribe(a.claim.Inbox)
	}
}

// newLease makes the lease. The deadline counts from since, a time that is no later than the grant.
// If the grant came by message, the parameter handed is how long the server keeps the lease. If
// the grant came in a reply, handed is 0. If the caller has left before the grant arrives,
// newLease gives the lock back.
func (a *acquisition) newLease(g store.Grant, since time.Time, handed time.Duration) (*Lease, error) {
	e := a.engine
	ttl := a.rule.lease()
	life := ttl
	if handed > 0 {
		life = handed
	}
	each := ttl
	if g.Left > 0 {
		life = min(life, g.Left)
		each = life
	}
	deadline := since.Add(life - e.cfg.drift(life))
	if gone := a.caller.Err(); gone != nil {
		return nil, a.fail(gone, 0)
	}
	now := time.Now()
	if !now.Before(deadline) {
		a.renewTicket()
		return nil, a.unanswered(fmt.Errorf("the answer arrived after the lease of %v had ended; raise the TTL", ttl))
	}
	f := new(first)
	f.hold = hold{
		engine: e, claim: a.claim, fence: g.Fence, block: int32(g.FenceCount), ttl: ttl, since: instantOf(since), taken: instantOf(now), //nolint:gosec // at most WithHandoffs

		unclear: a.token.state == tokenUnclear, posted: a.expected, cohort: a.cohort, signed: a.meta, contended: !a.busySince.IsZero() || handed > 0,
		renewal: renewal{each: each, longest: ttl, deadline: instantOf(deadline), handed: handed, adaptive: a.adaptive},
	}
	if a.rule.AtMost != 0 {
		f.hold.until = instantOf(since).plus(a.rule.AtMost)
	}
	if a.rule.AtLeast != 0 {
		f.hold.keep = instantOf(now).plus(a.rule.AtLeast)
	}
	if a.rule.Mode == Shared {
		f.hold.claim.Fence = g.Fence
	}
	f.lease.init(a, &f.hold, g.Fence)
	if a.cohort != nil {
		// This call must come before the hold is in the schedule, because the keeper may then
		// report a loss of the hold to the cohort.
		e.cohorts.granted(&f.hold)
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
