package locker

// Several permits of a semaphore can be held at the same time. So a cohort of callers with equal
// Key, TTL, Limit and Weight has many holds at once. The leader of the cohort is only the caller
// that asks the server for the next permit. There is a leader as long as callers wait. The table
// shows the events, and what follows:
//
//	a permit is granted           the next caller leads, and asks at once
//	a permit is released, and     the first waiting caller gets it, with the next fence of its block.
//	the streak is not over        If that caller is a leader that waits at the server, its place in the
//	                              queue goes to the next caller, or is given up when no caller waits
//	a permit is released, and     the permit goes back to the server, which serves the queue, in which
//	the streak is over            the leader already waits
//	a permit is lost              nothing: the other callers do not depend on it
//	the leader gives up           the same as with a lock
//
// If a caller of the cohort releases a permit while the leader's answer is on its way, the permit
// goes to the next waiting caller.

// isPermits reports whether the callers of a cohort want permits of a semaphore.
func (c *cohort) isPermits() bool { return c.terms.limit > 0 }

// maxHolders returns how many callers with this rule may hold the key at once.
func (r Rule) maxHolders() int { return max(r.Limit/max(r.Weight, 1), 1) }

// permits is the sharing of a semaphore's callers.
type permits struct{ *cohorts }

// join returns false, because each caller needs a permit of its own.
func (permits) join(*cohort, *acquisition) bool { return false }

// granted makes the next caller of the cohort the leader.
func (cs permits) granted(c *cohort, _ *hold) {
	if cs.active[c.terms] == c { // otherwise the permit belongs to a caller with NoWait, which has a cohort of its own
		cs.leadOrEnd(c).serve(turn{})
	}
}

// release gives the permit h to the next caller, if the streak may go on.
func (cs permits) release(c *cohort, h *hold) (passed bool, rest *cohort) {
	c = cs.active[c.terms]
	if c == nil || c.parked == nil && len(c.waiting) == 0 || h.ended || !cs.mayContinue(h) || !cs.engine.keeper.beginHandOff(h) {
		h.ended = true
		return false, nil
	}
	next := successor{c.parked}
	if c.parked == nil {
		next = c.next()
	}
	c.parked = nil
	fence := h.fence + uint64(h.used)
	h.used++
	h.cohort = c
	next.serve(turn{hold: h, fence: fence})
	return true, nil
}

// vacate returns false, because permits still refer to their cohort.
func (permits) vacate(*cohort) (reusable bool) { return false }

// park is called when a, the leader of a semaphore's cohort, waits at the server. Until unpark is
// called, the leader may receive, through the channel turns, one permit that another caller of the
// cohort has released. If a does not lead a semaphore's cohort, the channel turns is nil.
func (cs *cohorts) park(a *acquisition) (turns <-chan turn) {
	if !a.leads || !a.cohort.isPermits() {
		return nil
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if a.turn == nil {
		a.turn = make(chan turn, 1)
	}
	a.cohort.parked = a
	return a.turn
}

// unpark ends what park began, when the wait of a has ended with (lease, err). If a permit came
// just after the end of the wait, the caller takes the permit. If the caller has a lease already or
// has left, the permit goes to the next caller.
func (cs *cohorts) unpark(a *acquisition, lease *Lease, err error) (*Lease, error) {
	cs.mu.Lock()
	if a.cohort.parked == a {
		a.cohort.parked = nil
	}
	cs.mu.Unlock()
	select {
	case t := <-a.turn:
		if lease == nil && err == nil {
			return a.takePermit(t), nil
		}
		a.passTurn(t)
	default:
	}
	return lease, err
}

// takePermit gives the leader a Lease of the permit in t, which another caller of the cohort has
// released. The next caller becomes the leader, and gets the place in the server's queue.
// takePermit returns nil when the permit was lost meanwhile.
func (a *acquisition) takePermit(t turn) *Lease {
	l := a.takeOver(t)
	if l == nil {
		return nil
	}
	a.caller.engine.cohorts.abdicate(a, nil)
	a.leads = false
	a.ticket.giveBack(a.caller.engine)
	return l
}
