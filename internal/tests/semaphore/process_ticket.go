package semaphore

import "fmt"

// ticket is the life of one token: first its request for a lease, and later the lease.
type ticket struct {
	claim
	c        *caller
	state    state
	unclear  bool
	first    int64 // when the first call was sent, by the process's clock
	anchored bool
	local    int64 // for the latest call that was answered: when it was sent, by the process's clock; the field server is the time in its reply
	server   int64
	deadline int64
	fence    int64
	used     int
	taken    int64
	asks     int // number of the present call; a timer of an earlier call does nothing
	place    int
	left     int64
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

// ask sends an acquire.
func (t *ticket) ask(k *cohort) {
	p := t.proc
	t.asks++
	n, sent := t.asks, p.local()
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
			p.after(p.w.upTo(100*milli), func() {
				if t.state == waits && t.asks == n {
					t.ask(k)
				}
			})
			return
		}
		t.unclear = was
		t.anchored, t.local, t.server = true, sent, a.at
		switch {
		case a.granted:
			if t.p().off(CountFromSend) {
				sent = p.local()
			}
			t.hold(k, sent, p.w.ttl, a.fence, false)
		case a.undone:
			t.state = over
			delete(p.tokens, t.token)
		default:
			t.place, t.left = a.place, a.left
			if k.leader == t {
				k.parked = true
				t.wait(k)
			}
		}
	})
}

func (t *ticket) p() *server { return t.proc.w.server }

// wait sets the time of the next Acquire.
func (t *ticket) wait(k *cohort) {
	if t.p().off(AskAgain) {
		return
	}
	d := second
	switch {
	case t.place == 1:
		d = min(second, max(t.left, milli))
	case t.left > 0:
		d = min(max(t.left+t.proc.w.upTo(second), second), 10*second)
	}
	t.later(k, d)
}

func (t *ticket) later(k *cohort, d int64) {
	n := t.asks
	t.proc.after(d, func() {
		if t.state == waits && t.asks == n && k.leader == t {
			t.ask(k)
		}
	})
}

// hold begins a lease, which the server keeps for the duration life. since is the start of this
// duration by the process's clock.
func (t *ticket) hold(k *cohort, since, life, fence int64, handed bool) {
	p := t.proc
	t.deadline, t.fence, t.used, t.taken = since+life-p.drift(life), fence, 1, p.local()
	if p.local() >= t.deadline || t.c.gone {
		t.state = over
		if k.leader == t {
			t.giveBack()
			k.lead(t.c, nil)
		}
		return
	}
	t.state = holds
	p.w.holds(t, fence)
	if leads := k.leader == t; leads && t.p().off(NextLeads) {
		k.parked = false
	} else if leads {
		k.succeed(nil)
	}
	wait := p.w.ttl / 3
	if handed {
		wait = claimFor / 8
	}
	t.renewIn(k, wait)
	t.work(k, t.c)
}

// work makes a caller work under the lease.
func (t *ticket) work(k *cohort, c *caller) {
	p := t.proc
	c.turn++ // the caller does not wait any more
	p.after(p.w.work(), func() {
		c.ticket = nil
		if t.state == holds && t.c == c {
			t.release(k)
		}
		p.after(p.w.upTo(p.w.pause), c.come)
	})
	if p.w.chance(p.w.extends) {
		t.renewFor(k, 4*p.w.ttl)
	}
}

// release passes the permit on to the first caller that waits in this process. If no caller waits,
// the permit goes back to the server.
func (t *ticket) release(k *cohort) {
	p := t.proc
	if t.used < blockOf && p.local()-t.taken < 10*milli && p.local() < t.deadline-p.w.ttl/4 && p.w.streaks {
		c, crossing := t.heir(k)
		if c != nil {
			t.used++
			t.fence++
			t.c, c.ticket = c, t
			p.w.holds(t, t.fence)
			if crossing && p.w.chance(0.1) { // simulates that the caller leaves at the same moment
				c.turn++
				if t.p().off(PassCrossing) {
					p.after(second, c.come)
					return
				}
				p.after(second, c.come)
				t.release(k)
				return
			}
			t.work(k, c)
			return
		}
	}
	if t.state = over; k.leader == t { // happens only without the rule NextLeads
		k.succeed(nil)
	}
	p.w.gone(t)
	t.free()
}

// heir returns the first waiting caller of the cohort. If this caller is the leader, its place in
// the queue passes to the next caller, or is given up.
func (t *ticket) heir(k *cohort) (c *caller, crossing bool) {
	if l := k.leader; l != nil && k.parked && l.state == waits {
		c := l.c
		if !k.succeedWith(l) && !t.p().off(GiveUpPlace) {
			l.giveBack()
		}
		return c, false
	}
	if len(k.waiting) == 0 {
		return nil, false
	}
	c = k.waiting[0]
	k.waiting = k.waiting[1:]
	return c, true
}

func (k *cohort) succeedWith(l *ticket) (passed bool) {
	if l.unclear {
		k.succeed(nil)
		return false
	}
	return k.succeed(l)
}

// giveBack undoes a ticket that no caller wants.
func (t *ticket) giveBack() {
	t.state = over
	t.free()
}

// free sends the release. It repeats the release until an answer comes.
func (t *ticket) free() {
	p := t.proc
	c, undo := t.claim, t.unclear
	c.own = p.w.now + p.skew
	if undo {
		p.w.given(t.token)
	}
	p.w.call(p, func(s *server) answer { return s.release(c, undo) }, func(_ answer, ok bool) {
		if !ok {
			p.after(50*milli, t.free)
			return
		}
		delete(p.tokens, t.token)
	})
}

func (t *ticket) renewIn(k *cohort, d int64) {
	t.proc.after(d, func() {
		if t.state == holds {
			t.renewFor(k, t.proc.w.ttl)
			t.renewIn(k, t.proc.w.ttl/3)
		}
	})
	t.proc.after(max(t.deadline-t.proc.local(), 0), func() { t.lose(k) })
}

// lose ends a lease whose deadline has passed.
func (t *ticket) lose(k *cohort) {
	if t.state == holds && t.proc.local() >= t.deadline {
		t.end(k)
	}
}

func (t *ticket) end(k *cohort) {
	t.state = over
	t.proc.w.gone(t)
	if k.leader == t {
		k.succeed(nil)
	}
	t.free()
}

func (t *ticket) renewFor(k *cohort, ttl int64) {
	p := t.proc
	sent, c := p.local(), t.claim
	c.own = p.w.now + p.skew
	p.w.call(p, func(s *server) answer { return s.renew(c, ttl) }, func(a answer, ok bool) {
		switch {
		case !ok || t.state != holds:
		case a.ours:
			if p.w.server.off(CountFromSend) {
				sent = p.local()
			}
			t.deadline = max(t.deadline, sent+ttl-p.drift(ttl))
			p.after(max(t.deadline-p.local(), 0), func() { t.lose(k) })
		default:
			t.end(k)
		}
	})
}
