package locker

import (
	"github.com/latchkit/latchkit/locker/store"
)

// turn ends a caller's wait in a cohort. With the turn, the caller gets a hold or becomes the
// leader.
type turn struct {
	hold     *hold
	fence    uint64
	releaser Peer // the caller that handed hold over
	// streak is the number of this hand-off in the streak of hold, counted from 1. It is 0 when
	// readers share hold, because then the turn is no hand-off.
	streak    int
	follow    *follow // for a leader: the acquire that went out with the release of the previous hold
	ticket    *ticket // for a leader: the ticket of the previous leader, in the server's queue
	sawHolder bool    // for a leader: the server has reported that the key is held
	// err is set if WithMaxWaiters is exceeded. It is also set if the leader could not reach the
	// server and this waiter's time is over too.
	err error
}

// waitInCohort makes the caller wait together with the callers of this process that want the key on
// the same terms t. It returns the lease or an error.
func (a *acquisition) waitInCohort(t terms) (*Lease, error) {
	for inFront := false; ; inFront = true {
		if t.mode == Shared {
			if l := a.readShared(t); l != nil {
				return l, nil
			}
		}
		if !a.caller.engine.cohorts.enter(a, t, inFront) {
			return nil, a.fail(ErrTooManyWaiters, a.retryAfter())
		}
		if a.leads || a.caller.rule.Wait == NoWait {
			return a.start()
		}
		if a.caller.engine.cfg.queue && a.recalled == nil {
			a.caller.engine.post.warm(a.caller.key())
		}
		turn, err := a.awaitTurn()
		recalled := a.endDeparture()
		switch {
		case err != nil:
			return nil, err
		case turn.err != nil:
			return nil, turn.err
		case turn.hold == nil:
			return a.becomeLeader(turn)
		}
		if !recalled {
			a.waiting.busySince = a.caller.began
		}
		if turn.streak > 0 {
			a.waiting.noteHandoff(&a.caller, turn.releaser, HandoffLocal, turn.streak)
		}
		if l := a.takeOver(turn); l != nil {
			return l, nil
		}
		if a.caller.engine.isClosing() {
			return nil, a.fail(ErrClosed, 0)
		}
		// The hold was lost meanwhile, so the caller tries again.
	}
}

// endDeparture ends the background release whose hold was taken back for this caller. It returns
// false if no hold was taken back.
func (a *acquisition) endDeparture() bool {
	d := a.recalled
	if d == nil {
		return false
	}
	a.recalled = nil
	d.end(nil, 0)
	return true
}

// awaitTurn waits in the cohort until the caller gets its turn, and returns the turn.
func (a *acquisition) awaitTurn() (turn, error) {
	if len(a.turn) == 0 {
		a.waiting.noteWait(&a.caller, 0)
	}
	w := awaited{turns: a.turn}
	e, over := a.caller.await(&w)
	if e == turnCame {
		return w.turn, nil
	}
	if !a.caller.engine.cohorts.leave(a) {
		a.passTurn(<-a.turn)
	}
	return turn{}, a.giveUp(over)
}

// takeOver makes a Lease of the hold in t, which was handed over or is shared. It returns nil when
// the hold was lost meanwhile, or the Engine is closing.
func (a *acquisition) takeOver(t turn) *Lease {
	taken := false
	defer func() {
		if !taken {
			a.passTurn(t)
		}
	}()
	l := new(Lease)
	l.init(a, t.hold, t.fence)
	if taken = a.caller.engine.keeper.attach(t.hold, l); taken {
		return l
	}
	if a.caller.engine.isClosing() {
		l.notifyObserver(ErrClosed)
	} else {
		l.notifyObserver(ErrLost)
	}
	return nil
}

// becomeLeader makes the acquisition the leader of its cohort, as the successor of the previous
// leader.
func (a *acquisition) becomeLeader(t turn) (*Lease, error) {
	a.leads = true
	if t.sawHolder && a.waiting.busySince.IsZero() {
		a.waiting.busySince = a.caller.began
	}
	switch {
	case t.ticket != nil: // the ticket of the previous leader waits in the queue
		a.ticket = t.ticket
		return a.goOn(nil, nil)
	case t.follow != nil: // this leader's acquire went out with a release
		return a.lead(&t.follow.Future)
	}
	return a.start()
}

// passTurn is called when the caller gets the turn t but has left already. It gives the turn to the
// next caller.
func (a *acquisition) passTurn(t turn) {
	a.waiting.busySince = a.caller.began
	switch {
	case t.err != nil:
	case t.hold != nil:
		passed, rest := a.caller.engine.cohorts.release(t.hold)
		if !passed {
			t.hold.releaseUnused()
		}
		if rest != nil {
			a.caller.engine.cohorts.leadAfterRelease(rest)
		}
	default:
		a.leads = true
		if t.ticket != nil {
			a.ticket = t.ticket
		}
		if t.follow != nil {
			a.ticket.token.endCall(callLost)
		}
	}
}

// noteHolder records h, the holder for which the caller waits in this process.
func (a *acquisition) noteHolder(h store.Holder) {
	a.waiting.busySince, a.ticket.holder, a.ticket.current = a.caller.began, h, true
}
