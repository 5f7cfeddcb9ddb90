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
	first   time.Duration // S₀: when the first call was sent
	stamp   time.Duration // S₀ of the latest call that was answered: when it was sent
	stampT  micros        // T₀ of the latest call that was answered: the server's clock in the reply
	epoch   int           // the epoch of the process's subscription at that call
	replied bool          // there was a reply, so stamp and stampT are set
	open    int           // number of acquires without an answer
	asking  bool          // a call is under way
	again   bool          // another call is needed after the present one
	queued  bool          // the token may be in the server's queue
	seen    bool          // an answer has named a holder, so failures do not end the wait
	alarm   int           // number of the last planned re-check; earlier re-checks have no effect
	due     time.Duration // time of the re-check
	headAt  time.Duration // when the token should ask, as stated in the message to the head of the queue

	// These fields are for the time in which the lease is held.
	fence    uint64
	block    int
	used     int // how many fences the process has handed on after the first one
	since    time.Duration
	deadline time.Duration
	share    time.Duration // for how long the lease was granted
	ttl      time.Duration // the TTL that renewals request
	renewals int           // number of the last planned renewal; earlier renewals have no effect
	handed   bool          // the lease was granted by message, and no renewal has confirmed it yet
	ended    func()        // notifies the worker that its lease is lost

	// These fields are for the release of the lease.
	next    *hold
	earlier bool // an attempt to release before the end of the lease is unclear
	late    bool // an attempt to release after the end of the lease is unclear
	lost    bool // the lease had ended before the release
	until   time.Duration

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

// drift returns how much earlier a lease with the TTL d ends for its holder than for the server.
func (h *hold) drift(d time.Duration) time.Duration {
	return d/100 + 2*time.Millisecond + min(h.w.MaxSkew, d/4)
}

// claim returns how long the server keeps a lease after a hand-off if no renewal confirms the
// lease.
func (h *hold) claim() time.Duration {
	if !h.room.forever {
		return h.ttl
	}
	return min(h.ttl, mostClaim)
}

func (h *hold) asks(queue bool) claim {
	return claim{token: h.token, ttl: h.ttl, block: h.room.block(), queue: queue, inbox: h.p.inbox, hand: h.claim()}
}

// ask sends an acquire. If an acquire is under way already, ask records that another acquire must
// follow.
func (h *hold) ask() {
	if h.state != seeking {
		return
	}
	if h.asking {
		h.again = true
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
	queue := p.sub != nil || h.queued // the first call of a process does not queue: it has no inbox yet
	if h.room.alone && len(h.room.waiters) > 0 && h.room.waiters[0].noWait {
		queue = false
	}
	h.queued = h.queued || queue
	c := h.asks(queue)
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
		if w.without == CountFromSend {
			sent = p.now()
		}
		switch o {
		case answered:
			h.answered(r, sent, epoch, queue)
		default:
			h.failed(r)
		}
		h.askAgain()
	})
}

func (h *hold) askAgain() {
	if h.again && h.state == seeking {
		h.again = false
		h.ask()
	}
}

// answered handles the reply to an acquire, or to a release that carried an acquire.
func (h *hold) answered(r reply, sent time.Duration, epoch int, queue bool) {
	switch {
	case r.state == granted && h.state == held: // the message of the grant arrived before this reply
		h.extendTo(sent + h.ttl - h.drift(h.ttl))
	case h.state != seeking:
	case r.state == granted:
		h.hold(r.fence, r.block, sent+h.ttl-h.drift(h.ttl), h.ttl, h.ttl/3)
	case r.state == busy:
		h.seen = true
		h.replied = true
		h.stamp, h.stampT, h.epoch = sent, r.at, epoch
		h.plan(r, sent, queue)
	case h.w.without == OneHold: // without the rule OneHold, the process uses the token of an earlier wait again, and this token was undone
		h.enter(finished)
		h.room.lost()
	default: // a token that is in use must not have been undone
		h.w.violate(Truth, h.key, "token %d was never given up, and is answered %q", h.token, stateNames[r.state])
	}
}

// failed handles an acquire without an answer.
func (h *hold) failed(r reply) {
	if h.state != seeking {
		return
	}
	if r.state == noMemory || !h.seen && h.p.now()-h.first > time.Second {
		h.room.token = nil
		h.giveUp()
		h.room.fail()
		return
	}
	h.wake(h.w.backoff())
}

// plan sets the time of the next re-check after a reply "busy".
func (h *hold) plan(r reply, sent time.Duration, queue bool) {
	p, w := h.p, h.w
	if h.room.alone && len(h.room.waiters) > 0 && h.room.waiters[0].noWait {
		h.room.token = nil
		h.giveUp()
		h.room.fail()
		return
	}
	switch {
	case !queue:
		if p.sub == nil {
			p.listen() // when the subscription is open, all waiters ask again
			h.wake(w.backoff() + 50*time.Millisecond)
			return
		}
		h.wake(0)
		return
	case r.deaf && w.without != ResetDeaf:
		if p.sub != nil && p.subscribedAt < sent {
			w.note(h.key, p, "is deaf", h.token, 0)
			p.listen()
		}
		h.wake(w.backoff())
		return
	case w.without == Recheck:
		return
	case r.foreign && r.place == 1:
		h.wake(w.backoff())
		return
	}
	now := p.now()
	pause := h.first + recheckFirst - now
	if pause <= 0 {
		over := max(r.left, 0) + time.Millisecond
		if r.place == 1 {
			pause = min(recheckHead, over)
		} else {
			pause = min(recheckMost, time.Duration(r.place)*recheckHead, over+w.between(10*time.Millisecond, 100*time.Millisecond))
		}
	}
	if h.headAt > now {
		pause = min(pause, h.headAt-now)
	}
	h.wake(pause)
}

// head handles a message to the head of the queue. The message says that the lease was handed to
// another token. If this other token does not confirm its claim, the claim ends soon.
func (h *hold) head(claim time.Duration) {
	if h.state != seeking {
		return
	}
	now := h.p.now()
	h.headAt = now + claim + time.Millisecond
	if !h.asking && (h.headAt < h.due || h.w.without == OnlyNearer) {
		h.wake(h.headAt - now)
	}
}

// wake sets the time of the next Acquire.
func (h *hold) wake(pause time.Duration) {
	h.alarm++
	h.due = h.p.now() + pause
	this := h.alarm
	h.p.after(pause, func() {
		if h.alarm == this {
			h.ask()
		}
	})
}

// told handles the message of a grant. The token holds the lease only if the age of the message is
// certain.
func (h *hold) told(m message) {
	now := h.p.now()
	var g, wait time.Duration // the grant happened at g or later
	switch {
	case h.w.without == FreshMessage:
		g = now
	case !h.replied:
		g = h.first
	case h.epoch != h.p.epoch && h.w.without != VoidStamp:
		h.ask()
		return
	default:
		wait = time.Duration(m.at-h.stampT) * time.Microsecond
		g = h.stamp + wait
		if h.w.without != ShortWait {
			g -= wait / 100 // the process's clock may be slower than the server's
		}
	}
	if now < g || now-g > freshFor+wait/50 {
		h.w.note(h.key, h.p, "does not trust the age of the grant to", h.token, int64(now-g))
		h.ask()
		return
	}
	h.w.tally.Messages++
	h.handed = true
	h.hold(m.fence, m.block, g+m.claim-h.drift(m.claim), m.claim, min(250*time.Millisecond, m.claim/8))
}

// hold begins the lease.
func (h *hold) hold(fence uint64, block int, deadline, share, renewIn time.Duration) {
	h.fence, h.block, h.deadline, h.share = fence, block, deadline, share
	h.since = h.p.now()
	if h.since >= deadline { // the grant came too late to be used
		r := h.room
		h.release(nil)
		r.lost()
		return
	}
	h.enter(held)
	h.w.note(h.key, h.p, "holds", h.token, int64(fence))
	h.watch()
	if h.room.forever {
		h.renewAfter(renewIn)
	}
	if !h.room.serve(h) {
		h.room.done(h)
	}
}

// mayHandOn reports whether the lease may pass to the next worker of this process.
func (h *hold) mayHandOn() bool {
	if h.room.alone {
		return false
	}
	now := h.p.now()
	over := h.state != held || now >= h.deadline
	if h.w.without == LossEndsStreak {
		return h.used+1 < h.block
	}
	if over || h.deadline-now < h.share/2 {
		return false
	}
	if h.w.without == StayInBlock {
		return true
	}
	return h.used+1 < min(h.block, handoffs) && now-h.since < streakLasts
}

// watch ends the lease at its deadline, even without an answer of the server.
func (h *hold) watch() {
	at := h.deadline
	h.p.after(at-h.p.now(), func() {
		if h.state == held && h.deadline == at {
			h.lose()
		}
	})
}

func (h *hold) extendTo(deadline time.Duration) {
	if deadline > h.deadline {
		h.deadline = deadline
		h.watch()
		h.w.believesLonger(h)
	}
}

// lose ends the lease before its deadline, because the server has given it to another token.
func (h *hold) lose() {
	w := h.w
	w.note(h.key, h.p, "loses", h.token, 0)
	w.believesNoMore(h)
	h.lost = true
	ended, r := h.ended, h.room
	if w.without == LossEndsStreak && len(r.waiters) > 0 {
		return // the worker does not notice, and may hand the lease on
	}
	h.release(nil)
	r.lost()
	ended()
}
