package simulator

import "time"

// giveUp ends the wait of a token.
func (h *hold) giveUp() { h.release(nil) }

// release releases the lease, or leaves the queue. If next is not nil, the same call also puts the
// token next into the queue.
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
		next.first, next.queued, next.seen, next.asking = h.p.now(), true, true, true
	}
	h.until = h.p.now() + time.Minute + h.ttl
	h.sendRelease()
}

// sendRelease makes one attempt at the release. Only the first attempt carries the next token. If
// the result of that attempt is unclear, the next token sends an acquire of its own.
func (h *hold) sendRelease() {
	w, p := h.w, h.p
	next := h.next
	h.next = nil
	undo := h.undoFor()
	var c *claim
	if next != nil {
		next.open++
		asked := next.asks(true)
		c = &asked
		w.note(h.key, p, "releases, and queues", h.token, int64(c.token))
	} else {
		w.note(h.key, p, "releases, undoing if not 0", h.token, int64(undo))
	}
	sent, epoch, later := p.now(), p.epoch, time.Duration(0)
	if next != nil && w.chance(w.LateFollow) {
		later = w.Patience + w.backoff()
	}
	w.callLate(p, later, func() reply {
		r := w.server.release(h.key, h.token, undo, c)
		w.note(h.key, nil, stateNames[r.state], h.token, 0)
		return r
	}, func(r reply, o outcome) {
		if next != nil {
			next.follow(r, o, sent, epoch)
		}
		if o != answered {
			h.earlier = h.earlier || o == unclear && sent < h.deadline
			h.late = h.late || o == unclear && sent >= h.deadline
			if p.now() < h.until {
				p.after(w.backoff(), h.sendRelease)
				return
			}
		}
		h.settled(r, o)
	})
}

// follow handles the answer to a release, in which h was the next token.
func (h *hold) follow(r reply, o outcome, sent time.Duration, epoch int) {
	h.asking = false
	if o != unclear {
		h.open--
	}
	if h.w.without == CountFromSend {
		sent = h.p.now()
	}
	switch {
	case h.state != seeking: // a message has granted h the lease, or h has given up its wait
		return
	case o == answered && r.state == released:
		h.answered(*r.next, sent, epoch, true)
	case o == answered:
		h.again = true
	default:
		h.failed(r)
	}
	h.askAgain()
}

// undoFor returns how long the server must refuse an acquire that has no answer.
func (h *hold) undoFor() time.Duration {
	if h.open == 0 || h.w.without == UndoUnanswered {
		return 0
	}
	return max(h.ttl, time.Minute)
}

// settled ends the life of a token.
func (h *hold) settled(r reply, o outcome) {
	if h.state == releasing {
		h.enter(finished)
	}
	if o == answered && r.state == notOurs && h.deadline > 0 && !h.earlier && !h.late && !h.lost {
		h.w.toldLost(h)
	}
}

// answerWithRelease releases a grant that no hold can use.
func (h *hold) answerWithRelease() {
	w, undo := h.w, h.undoFor()
	w.note(h.key, h.p, "answers with a release of", h.token, 0)
	w.call(h.p, func() reply { return w.server.release(h.key, h.token, undo, nil) }, func(_ reply, o outcome) {
		if o == unclear || o == refused {
			h.p.after(w.backoff(), func() {
				if h.state == finished {
					h.answerWithRelease()
				}
			})
		}
	})
}
