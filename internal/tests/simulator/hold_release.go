package simulator

import "time"

// giveUp ends the wait of the token h.
func (h *hold) giveUp() { h.release() }

// release gives up the lease of h, or its place in the queue.
func (h *hold) release() {
	if h.state == finished || h.state == releasing {
		return
	}
	never := h.state == seeking && !h.queued && h.open == 0
	h.enter(releasing)
	if never {
		h.enter(finished)
		return
	}
	h.retryUntil = h.p.now() + time.Minute + h.ttl
	h.sendRelease()
}

// sendRelease makes one attempt at the release.
func (h *hold) sendRelease() {
	w, p := h.w, h.p
	undo := h.undoFor()
	w.note(h.key, p, "releases, undoing if not 0", h.token, int64(undo))
	sent := p.now()
	w.call(p, func() reply {
		r := w.server.release(h.key, h.token, undo)
		w.note(h.key, nil, stateNames[r.state], h.token, 0)
		return r
	}, func(r reply, o outcome) {
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
	h.room.onReleased(h)
	if o == answered && r.state == notOurs && h.deadline > 0 && !h.unclearBefore && !h.unclearAfter && !h.wasLost {
		h.w.checkLossReply(h)
	}
}

// answerWithRelease releases the lease that a message has granted to h, because h has already
// ended.
func (h *hold) answerWithRelease() {
	w, undo := h.w, h.undoFor()
	w.note(h.key, h.p, "answers with a release of", h.token, 0)
	w.call(h.p, func() reply { return w.server.release(h.key, h.token, undo) }, func(_ reply, o outcome) {
		if o == unclear || o == refused {
			h.p.schedule(w.backoff(), func() {
				if h.state == finished {
					h.answerWithRelease()
				}
			})
		}
	})
}
