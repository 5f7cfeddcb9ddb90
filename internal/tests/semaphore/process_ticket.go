package semaphore

import "fmt"

// ticket is the life of one token: first its request for a lease, then its lease.
type ticket struct {
	claim
	c          *caller
	state      state
	unclear    bool
	first      int64 // when the first call was sent, by the process's clock
	anchored   bool
	sentAt     int64 // when the latest answered call was sent, by the clock of the process
	serverTime int64
	deadline   int64
	fence      int64
	used       int
	takenAt    int64
	asks       int // number of calls so far; the timer of an earlier call does nothing
	place      int
	remaining  int64
}

type state int

const (
	waits state = iota
	holds
	over
)

func (p *process) newTicket(c *caller) *ticket {
	p.w.serial++
	t := &ticket{c: c, claim: claim{
		token: fmt.Sprintf("t%07d", p.w.serial), proc: p, weight: c.weight, limit: c.limit, ttl: p.w.ttl, hand: claimFor,
	}}
	c.ticket = t
	p.tokens[t.token] = t
	return t
}

// ask sends an acquire for the ticket, which belongs to the cohort k.
func (t *ticket) ask(k *cohort) {
	p := t.proc
	t.asks++
	n, sent := t.asks, p.localTime()
	k.parked = k.parked && k.leader != t
	if t.first == 0 {
		t.first = sent
	}
	t.own = p.w.now + p.skew
	c := t.claim
	was := t.unclear
	t.unclear = true
	p.w.call(p, func(s *server) answer { return s.acquire(c, true) }, func(a answer, ok bool) {
		if t.state != waits || t.asks != n {
			return
		}
		if !ok {
			p.schedule(p.w.upTo(100*milli), func() {
				if t.state == waits && t.asks == n {
					t.ask(k)
				}
			})
			return
		}
		t.unclear = was
		t.anchored, t.sentAt, t.serverTime = true, sent, a.at
		switch {
		case a.granted:
			if t.server().omits(CountFromSend) {
				sent = p.localTime()
			}
			t.beginLease(k, sent, p.w.ttl, a.fence, false)
		case a.undone:
			t.state = over
			delete(p.tokens, t.token)
		default:
			t.place, t.remaining = a.place, a.remaining
			if k.leader == t {
				k.parked = true
				t.planNextAsk(k)
			}
		}
	})
}

func (t *ticket) server() *server { return t.proc.w.server }

// planNextAsk sets the time of the next acquire of a waiting ticket.
func (t *ticket) planNextAsk(k *cohort) {
	if t.server().omits(AskAgain) {
		return
	}
	d := second
	switch {
	case t.place == 1:
		d = min(second, max(t.remaining, milli))
	case t.remaining > 0:
		d = min(max(t.remaining+t.proc.w.upTo(second), second), 10*second)
	}
	t.askAfter(k, d)
}

func (t *ticket) askAfter(k *cohort, d int64) {
	n := t.asks
	t.proc.schedule(d, func() {
		if t.state == waits && t.asks == n && k.leader == t {
			t.ask(k)
		}
	})
}

// beginLease begins a lease with its fence. The server keeps the lease for the duration life,
// which began at startedAt by the clock of the process. handed reports whether the grant came by
// message.
func (t *ticket) beginLease(k *cohort, startedAt, life, fence int64, handed bool) {
	p := t.proc
	t.deadline, t.fence, t.used, t.takenAt = startedAt+life-p.drift(life), fence, 1, p.localTime()
	if p.localTime() >= t.deadline || t.c.gaveUp {
		t.state = over
		if k.leader == t {
			t.giveBack()
			k.lead(t.c, nil)
		}
		return
	}
	t.state = holds
	p.w.recordHold(t, fence)
	if leads := k.leader == t; leads && t.server().omits(NextLeads) {
		k.parked = false
	} else if leads {
		k.promoteNext(nil)
	}
	wait := p.w.ttl / 3
	if handed {
		wait = claimFor / 8
	}
	t.renewIn(k, wait)
	t.work(k, t.c)
}

// work makes the caller c work under the lease, and then release it.
func (t *ticket) work(k *cohort, c *caller) {
	p := t.proc
	c.turn++ // the caller does not wait any more
	p.schedule(p.w.work(), func() {
		c.ticket = nil
		if t.state == holds && t.c == c {
			t.release(k)
		}
		p.schedule(p.w.upTo(p.w.pause), c.startAcquire)
	})
	if p.w.chance(p.w.extends) {
		t.renewFor(k, 4*p.w.ttl)
	}
}

// release passes the permit on to the first caller that waits behind the leader. If no such caller
// waits, the permit goes back to the server.
func (t *ticket) release(k *cohort) {
	p := t.proc
	if t.used < blockOf && p.localTime()-t.takenAt < 10*milli && p.localTime() < t.deadline-p.w.ttl/4 && p.w.streaks {
		if len(k.waiting) > 0 {
			c := k.waiting[0]
			k.waiting = k.waiting[1:]
			t.used++
			t.fence++
			t.c, c.ticket = c, t
			p.w.recordHold(t, t.fence)
			// simulates that the caller gives up its wait at the moment in which it gets the
			// permit
			if p.w.chance(0.1) {
				c.turn++
				if t.server().omits(PassCrossing) {
					p.schedule(second, c.startAcquire)
					return
				}
				p.schedule(second, c.startAcquire)
				t.release(k)
				return
			}
			t.work(k, c)
			return
		}
	}
	if t.state = over; k.leader == t { // happens only without the rule NextLeads
		k.promoteNext(nil)
	}
	p.w.recordHoldEnd(t)
	t.sendRelease()
}

// giveBack ends a ticket that no caller wants any more, and releases its place or its permit.
func (t *ticket) giveBack() {
	t.state = over
	t.sendRelease()
}

// sendRelease sends the release of the ticket. It repeats the release until an answer comes.
func (t *ticket) sendRelease() {
	p := t.proc
	c, undo := t.claim, t.unclear
	c.own = p.w.now + p.skew
	release := func(s *server) answer {
		if undo { // until then, the server may still grant the units to the queued token
			p.w.recordGivenBack(t.token)
		}
		return s.release(c, undo)
	}
	p.w.call(p, release, func(_ answer, ok bool) {
		if !ok {
			p.schedule(50*milli, t.sendRelease)
			return
		}
		delete(p.tokens, t.token)
	})
}

func (t *ticket) renewIn(k *cohort, d int64) {
	t.proc.schedule(d, func() {
		if t.state == holds {
			t.renewFor(k, t.proc.w.ttl)
			t.renewIn(k, t.proc.w.ttl/3)
		}
	})
	t.proc.schedule(max(t.deadline-t.proc.localTime(), 0), func() { t.endIfOverdue(k) })
}

// endIfOverdue ends the lease if its deadline has passed.
func (t *ticket) endIfOverdue(k *cohort) {
	if t.state == holds && t.proc.localTime() >= t.deadline {
		t.end(k)
	}
}

func (t *ticket) end(k *cohort) {
	t.state = over
	t.proc.w.recordHoldEnd(t)
	if k.leader == t {
		k.promoteNext(nil)
	}
	t.sendRelease()
}

func (t *ticket) renewFor(k *cohort, ttl int64) {
	p := t.proc
	sent, c := p.localTime(), t.claim
	c.own = p.w.now + p.skew
	p.w.call(p, func(s *server) answer { return s.renew(c, ttl) }, func(a answer, ok bool) {
		switch {
		case !ok || t.state != holds:
		case a.ours:
			if p.w.server.omits(CountFromSend) {
				sent = p.localTime()
			}
			t.deadline = max(t.deadline, sent+ttl-p.drift(ttl))
			p.schedule(max(t.deadline-p.localTime(), 0), func() { t.endIfOverdue(k) })
		default:
			t.end(k)
		}
	})
}
