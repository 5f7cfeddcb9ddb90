package locker

import "time"

// The permits of a semaphore do not keep each other waiting. So a cohort of callers with equal Key,
// TTL, Limit and Weight has many holds at once, and its leader is only the caller that asks the
// server for the next one. It is there as long as callers wait. Events, and what they do:
//
//	a permit is granted           the next caller leads, and asks at once
//	a permit is released, and     the first caller that waits gets it, with the next fence of its block.
//	the streak is not over        That is the leader if it waits at the server: its place in the queue
//	                              goes to the next caller, or is given up when none waits
//	released, and the streak      it goes back to the server, which serves the queue: the leader stands
//	is over                       there already
//	a permit is lost              nothing: the others do not depend on it
//	the leader gives up           as with a lock
//
// A permit that crosses an answer of the server goes to the next caller that waits.

// isPermits reports whether the callers of a cohort share a semaphore.
func (c *cohort) isPermits() bool { return c.terms.limit > 0 }

// together is how many callers with this rule may hold the key at once.
func (r Rule) together() int { return max(r.Limit/max(r.Weight, 1), 1) }

// grantedPermit makes the next caller the leader. cs.mu is held.
func (cs *cohorts) grantedPermit(h *hold) {
	c := h.cohort
	h.used, c.failure = 1, nil
	if cs.active[c.terms] != c {
		return // of a caller that waits for nobody: the cohort is its own
	}
	if next := cs.newLeader(c); next != nil {
		next.turn <- turn{}
	}
}

// passPermit is called when the user of h releases it. It returns false when h must go back to the
// server. cs.mu is held.
func (cs *cohorts) passPermit(h *hold) (passed bool) {
	c := cs.active[h.cohort.terms]
	if c == nil || c.parked == nil && len(c.waiting) == 0 || h.over || h.used >= h.block ||
		instantOf(time.Now()).until(h.taken) >= streakWithin || cs.engine.isClosing() || !cs.engine.keeper.pass(h) {
		h.over = true
		return false
	}
	next := c.parked
	if next == nil {
		next = c.next()
	}
	c.parked = nil
	fence := h.fence + uint64(h.used) //nolint:gosec // a few
	h.used++
	h.cohort = c
	next.turn <- turn{hold: h, fence: fence}
	return true
}

// park is called when the leader of a semaphore's cohort waits at the server. Until unpark it may
// get the permit of another caller on turns, once. For all others turns is nil.
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

// unpark ends that. A permit that came when the wait had just ended is taken, or goes to the next
// caller if this one has a lease already, or has left.
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
		a.passUp(t)
	default:
	}
	return lease, err
}

// takePermit makes a Lease of a permit that another caller of the cohort has released. The next
// caller leads, with this one's place in the server's queue. It returns nil when the permit was
// lost meanwhile.
func (a *acquisition) takePermit(t turn) *Lease {
	l := a.takeOver(t)
	if l == nil {
		return nil
	}
	a.engine.cohorts.abdicate(a, nil)
	a.leads = false
	a.giveBack()
	return l
}
