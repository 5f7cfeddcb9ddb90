package simulator

import "time"

// giveUp ends the wait of the token h.
func (h *hold) giveUp() { h.release(nil) }

// release gives up the lease of h, or its place in the queue. If the parameter next is not nil,
// the same call also acquires for this next token.
func (h *hold) release(next *hold) {
	if h.state == finished || h.state == releasing {
		return
	}
	never := h.state == seeking && !h.queued && h.open == 0
	h.enter(releasing)
	if never {
		h.enter(finished)
		return
	}
	h.next = next
	if next != nil {
		next.first, next.queued, next.holderNamed, next.asking = h.p.now(), true, true, true
	}
	h.retryUntil = h.p.now() + time.Minute + h.ttl
	h.sendRelease()
}

// sendRelease makes one attempt at the release. Only the first attempt carries the next token.
// If the result of the first attempt is unclear, the next token sends an acquire of its own.
func (h *hold) sendRelease() {
	w, p := h.w, h.p
	next := h.next
	h.next = nil
	undo := h.undoFor()
	var c *claim
	if next != nil {
		next.open++
		asked := next.newClaim(true)
		c = &asked
		w.note(h.key, p, "releases, and queues", h.token, int64(c.token))
	} else {
		w.note(h.key, p, "releases, undoing if not 0", h.token, int64(undo))
	}
	sent, epoch, extraDelay := p.now(), p.epoch, time.Duration(0)
	if next != nil && w.chance(w.LateFollow) {
		extraDelay = w.Patience + w.backoff()
	}
	w.callLate(p, extraDelay, func() reply {
		r := w.server.release(h.key, h.token, undo, c)
		w.note(h.key, nil, stateNames[r.state], h.token, 0)
		return r
	}, func(r reply, o outcome) {
		if next != nil {
			next.onReleaseReply(r, o, sent, epoch)
		}
		if o != answered {
			h.unclearBefore = h.unclearBefore || o == unclear && sent < h.deadline
			h.unclearAfter = h.unclearAfter || o == unclear && sent >= h.deadline
			if p.now() < h.retryUntil {
				p.schedule(w.backoff(), h.sendRelease)
				return
			}
		}
		h.onReleased(r, o)
	})
}

// onReleaseReply handles the reply to a release that carried an acquire for the token h.
func (h *hold) onReleaseReply(r reply, o outcome, sentAt time.Duration, epoch int) {
	h.asking = false
	if o != unclear {
		h.open--
	}
	if h.w.omitted == CountFromSend {
		sentAt = h.p.now()
	}
	switch {
	case h.state != seeking: // a message has granted h the lease, or h has given up its wait
		return
	case o == answered && r.state == released:
		h.onReply(*r.next, sentAt, epoch, true)
	case o == answered:
		h.askPending = true
	default:
		h.onNoReply(r)
	}
	h.askAgain()
}

// undoFor returns how long the server must keep a tombstone for h, or 0 if every acquire of h
// has a reply and no tombstone is necessary.
func (h *hold) undoFor() time.Duration {
	if h.open == 0 || h.w.omitted == UndoUnanswered {
		return 0
	}
	return max(h.ttl, time.Minute)
}

// onReleased ends the life of the token h after its last release, whose reply is r. It checks
// that r does not wrongly report a loss.
func (h *hold) onReleased(r reply, o outcome) {
	if h.state == releasing {
		h.enter(finished)
	}
	if o == answered && r.state == notOurs && h.deadline > 0 && !h.unclearBefore && !h.unclearAfter && !h.wasLost {
		h.w.checkLossReply(h)
	}
}

// answerWithRelease releases the lease that a message has granted to h, because h has already
// ended.
func (h *hold) answerWithRelease() {
	w, undo := h.w, h.undoFor()
	w.note(h.key, h.p, "answers with a release of", h.token, 0)
	w.call(h.p, func() reply { return w.server.release(h.key, h.token, undo, nil) }, func(_ reply, o outcome) {
		if o == unclear || o == refused {
			h.p.schedule(w.backoff(), func() {
				if h.state == finished {
					h.answerWithRelease()
				}
			})
		}
	})
}
