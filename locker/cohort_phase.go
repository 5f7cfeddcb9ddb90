package locker

import "time"

// Readers of one process share a hold. The hold is one token and one entry on the server, and its
// last reader releases it. While the phase is open, newcomers use the hold too, without a call.
// The table shows the events, and what follows:
//
//	the hold is granted      all waiters of the cohort use it; the phase is open
//	a writer waits           the phase is closed: newcomers form a new cohort, and wait at the
//	                         server behind the writer. The cohort learns of the writer from the
//	                         grant, from a message, or from a renewal, which is sent at once after
//	                         messages may have been lost
//	half of its time is      the phase is closed: newcomers should not depend on this hold
//	over without a renewal,
//	or it was extended
//	a reader releases        nothing, unless the reader is the last one: then the hold is released
//	the hold is lost         the contexts of all its readers end
//	a reader acquires again  it uses the same hold, even while the phase is closed: the writer waits
//	                         for this reader, so the reader must not wait for the writer. With
//	                         KeepFor, EndAfter or OnceFor the reader asks the server, once
//
// A cohort of readers has waiting callers only until its leader has got a hold and shares it.

// phases is the sharing of readers.
type phases struct{ *cohorts }

// join lets a use the hold, while the phase is open. The caller a looked before the phase opened,
// and no later event would wake it.
func (phases) join(c *cohort, a *acquisition) bool {
	if !c.open {
		return false
	}
	a.cohort = c
	a.expectTurn()
	c.hold.users++
	successor{a}.serve(turn{hold: c.hold, fence: c.hold.fence})
	return true
}

// granted makes h the hold of the cohort. The phase opens with letIn, when h is in the keeper's
// schedule.
func (cs phases) granted(c *cohort, h *hold) {
	c.hold, c.sawHolder, h.users = h, true, 1
	cs.phases[h.claim.Owner] = h
}

// release returns true when h has other users or is lost. If it returns false, the caller must
// release h at the server.
func (cs phases) release(c *cohort, h *hold) (passed bool, rest *cohort) {
	h.users--
	if c.hold != h || h.users > 0 {
		return true, nil
	}
	h.ended = true
	cs.leadOrEnd(c) // ends the cohort: it has no waiters, because it has a hold
	return false, nil
}

func (cs phases) vacate(c *cohort) (reusable bool) {
	if c.hold != nil {
		delete(cs.phases, c.hold.claim.Owner)
	}
	return true
}

// unnotifiedRenewals is the longest time between two renewals if the readers cannot receive
// messages about a waiting writer.
const unnotifiedRenewals = time.Second

// readShared returns a Lease that shares the hold of this process's readers with the terms t, or
// nil if their phase is not open.
func (a *acquisition) readShared(t terms) *Lease {
	h := a.caller.engine.cohorts.enterPhase(a, t)
	if h == nil {
		return nil
	}
	l := a.takeOver(turn{hold: h, fence: h.fence})
	if l == nil {
		a.caller.engine.cohorts.closePhase(h) // the hold was lost meanwhile
	}
	return l
}

// readAlong returns a Lease that uses the same hold as outer, the lease under which the caller
// already reads. readAlong returns nil if the caller cannot share this hold.
func (a *acquisition) readAlong(outer *Lease) *Lease {
	if h := outer.hold; a.caller.engine.cohorts.enterAgain(a, h) {
		return a.takeOver(turn{hold: h, fence: h.fence})
	}
	return nil
}

// subscribeFirst subscribes before the first question, so that the server can notify this process
// of a waiting writer. If that takes long, the reader learns of a writer at its next renewal.
func (a *acquisition) subscribeFirst() error {
	if p := &a.caller.engine.post; p.notifier == nil || !a.caller.engine.cfg.queue || p.inbox(a.caller.key()) != "" {
		return nil
	}
	began := time.Now()
	_, err := a.open(unansweredFor / 2)
	a.waiting.subscribing = time.Since(began)
	return err
}

// enterPhase counts the caller a as a user of the open hold for the terms t, and returns this hold.
// It returns nil when no hold is open.
func (cs *cohorts) enterPhase(a *acquisition, t terms) *hold {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.active[t]
	if c == nil || !c.open {
		return nil
	}
	if !cs.engine.keeper.isSound(c.hold) {
		cs.closePhaseLocked(c.hold)
		return nil
	}
	a.cohort = c
	c.hold.users++
	return c.hold
}

// enterAgain counts the caller a as one more user of h. It returns false if h has ended.
func (cs *cohorts) enterAgain(a *acquisition, h *hold) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := h.cohort; c == nil || c.hold != h || c.terms.mode != Shared {
		return false
	}
	a.cohort = h.cohort
	h.users++
	return true
}

// letIn makes all waiters of h's cohort users of h. Newcomers may use h as well, unless h is
// closed, or a writer waits and the parameter writer is therefore true.
func (cs *cohorts) letIn(h *hold, writer bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := h.cohort
	if c.hold != h {
		return // h is lost already
	}
	for len(c.waiting) > 0 {
		h.users++
		c.next().serve(turn{hold: h, fence: h.fence})
	}
	if c.open = cs.active[c.terms] == c; writer || h.closed {
		cs.closePhaseLocked(h)
	}
}

// closePhase closes the phase of h, so that newcomers begin another hold.
func (cs *cohorts) closePhase(h *hold) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closePhaseLocked(h)
}

// noteWriter is called when the server reports that a writer waits for the end of the phase in
// which the owner of token reads.
func (cs *cohorts) noteWriter(token string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if h := cs.phases[token]; h != nil {
		cs.closePhaseLocked(h)
	}
}

// closePhaseLocked closes the phase of h, so that the next newcomer begins a new cohort. It may be
// called before letIn. The caller holds cs.mu.
func (cs *cohorts) closePhaseLocked(h *hold) {
	h.closed = true
	if c := h.cohort; c != nil && c.hold == h && c.open {
		c.open = false
		delete(cs.active, c.terms)
	}
}

// afterDowngrade is called when the hold h of a writer has become a hold of readers. It makes the
// waiting callers of the cohort ask again. Newcomers do not share h, because another hold of this
// process may already be open to readers.
func (cs *cohorts) afterDowngrade(h *hold) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := h.cohort
	if h.ended || c != nil && c.terms.mode == Shared {
		return
	}
	t := terms{key: h.claim.Key, mode: Shared, ttl: h.ttl}
	h.cohort, h.users = &cohort{terms: t, hold: h}, 1
	cs.phases[h.claim.Owner] = h
	if c != nil {
		cs.leadOrEnd(c).serve(turn{sawHolder: true})
	}
}

// isSound reports whether h may be handed over or shared.
func (k *keeper) isSound(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.isSoundLocked()
}

// removeUser removes l from the Leases that use h. If others stay, one of them takes the place of
// the first user, whose events are those of the hold.
func (k *keeper) removeUser(h *hold, l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(h.renewal.sharers, l)
	if h.renewal.lease == l {
		h.renewal.lease = nil
		for h.renewal.lease = range h.renewal.sharers {
			break
		}
		delete(h.renewal.sharers, h.renewal.lease)
	}
}

// renewReaders makes the renewals of readers due now: of the readers that receive their events
// at inbox, and of all readers if inbox is "".
func (k *keeper) renewReaders(inbox string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var readers []*hold
	for h := range k.due.holds() {
		if h.claim.Mode == Shared && !h.renewal.final && (inbox == "" || h.claim.Inbox == inbox) {
			readers = append(readers, h)
		}
	}
	for _, h := range readers {
		h.renewal.renewAt = instantOf(time.Now())
		k.reschedule(h)
	}
}
