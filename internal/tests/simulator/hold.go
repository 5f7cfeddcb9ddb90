package simulator

import (
	"slices"
	"time"
)

// hold is the life of one token in an engine. The token asks for the lease, holds it, and releases
// it. Times are by the clock of the process, unless a comment names another clock.
type hold struct {
	w     *world
	p     *process
	room  *room
	key   int
	token token
	state holdState

	// These fields are for the time in which the token asks for the lease.
	first  time.Duration // S₀: when the first call was sent
	stamp  time.Duration // S₀ of the latest answered call: when the call was sent
	stampT micros        // T₀ of the latest answered call: the time of the server in the reply
	// the process's epoch at that call: if the epoch has changed, messages may have been lost
	// since then
	epoch      int
	replied    bool // true after the first reply; then stamp and stampT are set
	open       int  // number of acquires without an answer
	asking     bool // a call is under way
	askPending bool // another call is needed after the present one
	queued     bool // the token may be in the server's queue
	// an answer has shown that another token holds the key; from then on, lost calls do not end
	// the wait
	holderNamed bool
	// number of the last planned re-check (the next acquire of the waiter); the timer of an
	// earlier re-check does nothing
	alarm  int
	due    time.Duration // time of the re-check
	headAt time.Duration // when this token, first in the queue, should ask; set by a message of the server

	// These fields are for the time in which the lease is held.
	fence     uint64
	block     int
	used      int // number of hand-offs inside the process; each hand-off uses the next fence
	startedAt time.Duration
	deadline  time.Duration
	share     time.Duration // the TTL of the grant, or of the longest renewal since then
	ttl       time.Duration // the TTL that renewals request
	// number of the last planned renewal; the timer of an earlier renewal does nothing
	renewals int
	handed   bool   // the lease was granted by message, and no renewal has confirmed it yet
	onLoss   func() // notifies the worker that its lease is lost

	// These fields are for the release of the lease.
	unclearBefore bool // a release was sent before the deadline, and its result is unclear
	unclearAfter  bool // a release was sent after the deadline, and its result is unclear
	wasLost       bool // the lease was lost before its release
	retryUntil    time.Duration

	truth truth
}

type holdState uint8

const (
	seeking holdState = iota
	held
	releasing
	finished
)

const (
	recheckFirst = time.Second
	recheckHead  = time.Second
	recheckMost  = 10 * time.Second
	freshFor     = 100 * time.Millisecond
	mostClaim    = 2 * time.Second
)

func newHold(r *room) *hold { return newHoldOf(r, r.p.w.newToken()) }

func newHoldOf(r *room, t token) *hold {
	p := r.p
	h := &hold{w: p.w, p: p, room: r, key: r.key, token: t, ttl: r.ttl}
	p.w.holds[t] = h
	p.seek = append(p.seek, h)
	return h
}

func (h *hold) enter(s holdState) {
	if h.state == seeking {
		h.p.seek = slices.DeleteFunc(h.p.seek, func(o *hold) bool { return o == h })
	}
	h.state = s
}

// drift returns the part of the TTL d that the holder does not use: for the holder, the lease
// ends earlier than on the server.
func (h *hold) drift(d time.Duration) time.Duration {
	return d/100 + 2*time.Millisecond + min(h.w.MaxSkew, d/4)
}

// claim returns the duration of a claim: after a hand-off, the server keeps the lease for this
// time if no renewal confirms it.
func (h *hold) claim() time.Duration {
	if !h.room.forever {
		return h.ttl
	}
	return min(h.ttl, mostClaim)
}

func (h *hold) newClaim(queue bool) claim {
	return claim{token: h.token, ttl: h.ttl, block: h.room.block(), queue: queue, inbox: h.p.inbox, hand: h.claim()}
}

// ask sends an acquire. If an earlier acquire of h has no reply yet, ask only records that
// another acquire must follow.
func (h *hold) ask() {
	if h.state != seeking {
		return
	}
	if h.asking {
		h.askPending = true
		return
	}
	w, p := h.w, h.p
	h.asking = true
	h.alarm++
	sent, epoch := p.now(), p.epoch
	if h.open == 0 && !h.replied {
		h.first = sent
	}
	h.open++
	// a process without an inbox does not queue, because it could not receive the grant
	queue := p.sub != nil || h.queued
	if h.room.alone && len(h.room.waiters) > 0 && h.room.waiters[0].noWait {
		queue = false
	}
	h.queued = h.queued || queue
	c := h.newClaim(queue)
	w.note(h.key, p, "asks for", h.token, int64(h.open))
	w.call(p, func() reply {
		r := w.server.acquire(h.key, c)
		w.note(h.key, nil, stateNames[r.state], h.token, int64(r.place))
		return r
	}, func(r reply, o outcome) {
		h.asking = false
		if o != unclear {
			h.open--
		}
		if w.omitted == CountFromSend {
			sent = p.now()
		}
		switch o {
		case answered:
			h.onReply(r, sent, epoch, queue)
		default:
			h.onNoReply(r)
		}
		h.askAgain()
	})
}

func (h *hold) askAgain() {
	if h.askPending && h.state == seeking {
		h.askPending = false
		h.ask()
	}
}

// onReply handles r, the reply to an acquire of h. The acquire was sent at sentAt.
func (h *hold) onReply(r reply, sentAt time.Duration, epoch int, queue bool) {
	switch {
	case r.state == granted && h.state == held: // the message of the grant arrived before this reply
		h.extendTo(sentAt + h.ttl - h.drift(h.ttl))
	case h.state != seeking:
	case r.state == granted:
		h.beginLease(r.fence, r.block, sentAt+h.ttl-h.drift(h.ttl), h.ttl, h.ttl/3)
	case r.state == busy:
		h.holderNamed = true
		h.replied = true
		h.stamp, h.stampT, h.epoch = sentAt, r.at, epoch
		h.plan(r, sentAt, queue)
	case h.w.omitted == OneHold: // without the rule OneHold, the process uses the token of an earlier wait again, and this token was undone
		h.enter(finished)
		h.room.onLoss()
	default: // the reply reports an undo of a token that is in use
		h.w.violate(Truth, h.key, "token %d was never given up, and is answered %q", h.token, stateNames[r.state])
	}
}

// onNoReply handles an acquire of h that got no reply, or that the server refused because its
// memory is full.
func (h *hold) onNoReply(r reply) {
	if h.state != seeking {
		return
	}
	if r.state == noMemory || !h.holderNamed && h.p.now()-h.first > time.Second {
		h.room.token = nil
		h.giveUp()
		h.room.failAll()
		return
	}
	h.askAfter(h.w.backoff())
}

// plan sets the time of the next re-check, the next acquire of h. The server has replied r,
// "busy", to the acquire that was sent at sentAt.
func (h *hold) plan(r reply, sentAt time.Duration, queue bool) {
	p, w := h.p, h.w
	if h.room.alone && len(h.room.waiters) > 0 && h.room.waiters[0].noWait {
		h.room.token = nil
		h.giveUp()
		h.room.failAll()
		return
	}
	switch {
	case !queue:
		if p.sub == nil {
			p.listen() // as soon as the subscription is open, all waiters of the process ask again
			h.askAfter(w.backoff() + 50*time.Millisecond)
			return
		}
		h.askAfter(0)
		return
	case r.deaf && w.omitted != ResetDeaf:
		if p.sub != nil && p.subscribedAt < sentAt {
			w.note(h.key, p, "is deaf", h.token, 0)
			p.listen()
		}
		h.askAfter(w.backoff())
		return
	case w.omitted == Recheck:
		return
	case r.foreign && r.place == 1:
		h.askAfter(w.backoff())
		return
	}
	now := p.now()
	pause := h.first + recheckFirst - now
	if pause <= 0 {
		over := max(r.remaining, 0) + time.Millisecond
		if r.place == 1 {
			pause = min(recheckHead, over)
		} else {
			pause = min(recheckMost, time.Duration(r.place)*recheckHead, over+w.randomBetween(10*time.Millisecond, 100*time.Millisecond))
		}
	}
	if h.headAt > now {
		pause = min(pause, h.headAt-now)
	}
	h.askAfter(pause)
}

// onHead handles a message for the first waiter that is left in the queue: the server has just
// handed the lease to another token. If this winner does not confirm the hand-off, its lease
// ends after the time claim, and h should ask then.
func (h *hold) onHead(claim time.Duration) {
	if h.state != seeking {
		return
	}
	now := h.p.now()
	h.headAt = now + claim + time.Millisecond
	if !h.asking && (h.headAt < h.due || h.w.omitted == OnlyNearer) {
		h.askAfter(h.headAt - now)
	}
}

// askAfter plans the next acquire after a pause. It replaces the earlier plan.
func (h *hold) askAfter(pause time.Duration) {
	h.alarm++
	h.due = h.p.now() + pause
	this := h.alarm
	h.p.schedule(pause, func() {
		if h.alarm == this {
			h.ask()
		}
	})
}

// onGrant handles m, the message of a grant. The token uses the lease only if the process can
// be sure that the message is fresh.
func (h *hold) onGrant(m message) {
	now := h.p.now()
	var g, wait time.Duration // g: the earliest time at which the server can have made the grant
	switch {
	case h.w.omitted == FreshMessage:
		g = now
	case !h.replied:
		g = h.first
	case h.epoch != h.p.epoch && h.w.omitted != VoidStamp:
		h.ask()
		return
	default:
		wait = time.Duration(m.at-h.stampT) * time.Microsecond
		g = h.stamp + wait
		if h.w.omitted != ShortWait {
			g -= wait / 100 // the server's clock may be up to 1 % faster than the process's clock
		}
	}
	if now < g || now-g > freshFor+wait/50 {
		h.w.note(h.key, h.p, "does not trust the age of the grant to", h.token, int64(now-g))
		h.ask()
		return
	}
	h.w.tally.Messages++
	h.handed = true
	h.beginLease(m.fence, m.block, g+m.claim-h.drift(m.claim), m.claim, min(250*time.Millisecond, m.claim/8))
}

// beginLease begins the lease with its fence, block and deadline. The parameter share is the TTL
// of the grant. The first renewal follows after renewIn.
func (h *hold) beginLease(fence uint64, block int, deadline, share, renewIn time.Duration) {
	h.fence, h.block, h.deadline, h.share = fence, block, deadline, share
	h.startedAt = h.p.now()
	if h.startedAt >= deadline { // the lease has ended before the process can use it
		r := h.room
		h.release()
		r.onLoss()
		return
	}
	h.enter(held)
	h.w.note(h.key, h.p, "holds", h.token, int64(fence))
	h.endAtDeadline()
	if h.room.forever {
		h.renewAfter(renewIn)
	}
	if !h.room.serve(h) {
		h.room.onWorkDone(h)
	}
}

// mayHandOn reports whether the lease may pass to the next worker of this process.
func (h *hold) mayHandOn() bool {
	if h.room.alone {
		return false
	}
	now := h.p.now()
	over := h.state != held || now >= h.deadline
	if h.w.omitted == LossEndsStreak {
		return h.used+1 < h.block
	}
	if over || h.deadline-now < h.share/2 {
		return false
	}
	if h.w.omitted == StayInBlock {
		return true
	}
	return h.used+1 < min(h.block, handoffs) && now-h.startedAt < streakLasts
}

// endAtDeadline plans the loss of the lease at its deadline. For this, the process needs no
// reply of the server.
func (h *hold) endAtDeadline() {
	at := h.deadline
	h.p.schedule(at-h.p.now(), func() {
		if h.state == held && h.deadline == at {
			h.lose()
		}
	})
}

func (h *hold) extendTo(deadline time.Duration) {
	if deadline > h.deadline {
		h.deadline = deadline
		h.endAtDeadline()
		h.w.recordDeadline(h)
	}
}

// lose ends the lease against the will of its worker: at the deadline, or when a reply shows that
// the token does not hold the key.
func (h *hold) lose() {
	w := h.w
	w.note(h.key, h.p, "loses", h.token, 0)
	w.recordEnd(h)
	h.wasLost = true
	ended, r := h.onLoss, h.room
	if w.omitted == LossEndsStreak && len(r.waiters) > 0 {
		return // without the rule, the worker does not notice the loss, and may hand the lease on
	}
	h.release()
	r.onLoss()
	ended()
}
