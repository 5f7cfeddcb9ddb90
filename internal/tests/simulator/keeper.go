package simulator

import "time"

// renewAfter plans the next renewal after the time d. It replaces the earlier plan.
func (h *hold) renewAfter(d time.Duration) {
	h.renewals++
	this := h.renewals
	h.p.schedule(d, func() {
		if h.renewals == this && h.state == held {
			h.renew(h.ttl)
		}
	})
}

// renew sends a renewal with the given TTL. It does not wait for the answers to earlier renewals.
func (h *hold) renew(ttl time.Duration) {
	w, p := h.w, h.p
	sent := p.now()
	h.renewAfter(h.ttl/10 + w.randomBetween(0, h.ttl/20)) // the next attempt, if this attempt gets no answer
	w.note(h.key, p, "renews", h.token, int64(ttl/time.Millisecond))
	handed := h.handed
	w.call(p, func() reply { return w.server.renew(h.key, h.token, ttl, handed) }, func(r reply, o outcome) {
		if o != answered || h.state != held {
			return
		}
		if w.omitted == CountFromSend {
			sent = p.now()
		}
		if r.state == notOurs {
			w.checkLossReply(h)
			h.lose()
			return
		}
		if p.now() >= h.deadline {
			return // the deadline has passed, so this reply comes too late
		}
		h.handed = false
		if ttl > h.ttl {
			h.ttl = ttl // later renewals ask for this TTL, too
		}
		h.share = max(h.share, ttl)
		h.extendTo(sent + ttl - h.drift(ttl))
		h.renewAfter(sent + h.ttl/3 - p.now())
	})
}
