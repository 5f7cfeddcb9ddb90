package locker

// turn ends a caller's wait in a cohort. With the turn, the caller gets a hold or becomes the
// leader.
type turn struct {
	hold     *hold
	fence    uint64
	releaser Peer // the caller that handed hold over
	// streak is the number of this hand-off in the streak of hold, counted from 1. It is 0 when
	// readers share hold, because then the turn is no hand-off.
	streak    int
	ticket    *ticket // for a leader: the ticket of the previous leader, in the server's queue
	sawHolder bool    // for a leader: the server has reported that the key is held
	// err is set if WithMaxWaiters is exceeded. It is also set if the leader could not reach the
	// server and this waiter's time is over too.
	err error
}

// A successor is a waiter whose turn has come, on its way from one caller to the next: usually the
// releasing caller has taken it out of the cohort. Only the methods of a successor change what
// belongs to another caller. The table shows which goroutine may use what, and until when:
//
//	                      until the waiter      in the cohort             as a successor,   then
//	                      enters the cohort                               until serve
//	its acquisition       its own goroutine     whoever holds the         the goroutine     its own
//	                                            cohorts' mutex            that took it out  goroutine
//	the ticket of the     –                     –                         the same          the waiter's
//	previous leader
//	the hold              guarded by the mutexes of cohorts and keeper: see hold
//
// While the waiter is in the cohort or a successor, its own goroutine waits for the turn, or for
// the cohorts' mutex in order to leave. [cohorts.leave] does not find a successor, so the goroutine
// then takes the turn. The parked leader of a semaphore's cohort still works on its acquisition: it
// is only served. The zero successor has no waiter.
type successor struct{ waiter *acquisition }

// serve gives the waiter its turn, and ends the ownership. Without a waiter it does nothing.
func (s successor) serve(t turn) {
	if s.waiter != nil {
		s.waiter.turn <- t
	}
}

// useHold makes the waiter the next user of h, with the next fence of h. The caller holds the
// cohorts' mutex.
func (s successor) useHold(h *hold) {
	t := turn{hold: h, fence: h.fence + uint64(h.used), releaser: h.user(), streak: int(h.used)}
	h.signed = s.waiter.caller.meta
	h.used++
	s.serve(t)
}

// refuse ends the wait with err, because too many callers wait. The caller holds the cohorts'
// mutex.
func (s successor) refuse(c *cohort, err error) {
	c.copyTo(s.waiter, len(c.waiting))
	s.waiter.waiting.admitted = false // its place goes to another caller
	s.serve(turn{err: err})
}

// succeed makes the waiter the leader of c as the successor of a, which has no hold. The waiter
// gets a's ticket if that ticket is in the queue. The caller holds the cohorts' mutex.
func (s successor) succeed(c *cohort, a *acquisition) {
	t := turn{sawHolder: c.sawHolder}
	c.copyTo(s.waiter, -1) // the new leader's wait may end before its first answer; a is not in front of it any more
	if a.ticket.token.state == tokenQueued {
		t.ticket = a.handOver()
	}
	s.serve(t)
}

// joinCohort makes the caller the leader of the callers of this process that want the key on the
// same terms t, or makes it wait for its turn among them. It returns the lease or an error.
func (a *acquisition) joinCohort(t terms) (*Lease, error) {
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
		if a.caller.engine.cfg.queue {
			a.caller.engine.post.warm(a.caller.key())
		}
		turn, err := a.awaitTurn()
		switch {
		case err != nil:
			return nil, err
		case turn.err != nil:
			return nil, turn.err
		case turn.hold == nil:
			return a.becomeLeader(turn)
		}
		a.waiting.busySince = a.caller.began
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

// awaitTurn waits in the cohort until the caller gets its turn, and returns the turn.
func (a *acquisition) awaitTurn() (turn, error) {
	if len(a.turn) == 0 {
		a.waiting.noteWait(&a.caller, 0)
	}
	t, over := a.turnOrLeave()
	if over != nil {
		return turn{}, a.giveUp(over)
	}
	return t, nil
}

// turnOrLeave waits for the turn. If the wait ends without a turn, the caller leaves the cohort,
// and over is the reason.
func (a *acquisition) turnOrLeave() (t turn, over error) {
	w, e := awaited{turns: a.turn}, waitOver
	defer func() { // deferred, because a method of ctx may panic
		if e != turnCame && !a.caller.engine.cohorts.leave(a) {
			a.passTurn(<-a.turn)
		}
	}()
	e, over = a.caller.await(&w)
	return w.turn, over
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
		a.caller.engine.cohorts.leadAfterRelease(rest)
	default:
		a.leads = true
		if t.ticket != nil {
			a.ticket = t.ticket
		}
	}
}
