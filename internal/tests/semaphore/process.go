package semaphore

import (
	"fmt"
	"slices"
)

// blockOf is how many fences a permit reserves for the callers of its process.
const blockOf = 4

// process is one Engine, and its callers. All callers that agree on weight and limit are a cohort.
type process struct {
	w         *world
	number    int
	rate      float64 // of its clock
	skew      int64   // of its wall clock
	stopped   int64   // until then
	dead      bool
	connected int64 // a dead process's connection counts until then
	cohorts   map[[2]int]*cohort
	tokens    map[string]*ticket // that wait, hold, or are being released
}

// local is the process's own clock, which never steps.
func (p *process) local() int64 { return int64(float64(p.w.now) * p.rate) }

// after does something later by the process's clock, unless it is dead by then. A stopped process
// does it when it goes on.
func (p *process) after(d int64, do func()) {
	p.w.at(p.w.now+int64(float64(d)/p.rate), func() { p.run(do) })
}

func (p *process) run(do func()) {
	switch {
	case p.dead:
	case p.w.now < p.stopped:
		p.w.at(p.stopped, func() { p.run(do) })
	default:
		do()
	}
}

// cohort is the callers that want units on the same terms.
type cohort struct {
	leader  *ticket
	parked  bool // the leader waits at the server, and may get a permit of this process
	waiting []*caller
}

// caller wants units, holds them for a while, and comes back.
type caller struct {
	p      *process
	weight int
	limit  int
	ticket *ticket
	gone   bool // it has given up this time
	turn   int  // counts its waits
}

// ticket is a token on its way to a lease, and the lease.
type ticket struct {
	claim
	c        *caller
	state    state
	unclear  bool
	first    int64 // local, when it was first sent
	anchored bool
	local    int64 // when the call was sent whose answer came last, and the server's clock in it
	server   int64
	deadline int64
	fence    int64
	used     int
	taken    int64
	asks     int // cancels timers
	place    int
	left     int64
}

type state int

const (
	waits state = iota
	holds
	over
)

func (p *process) drift(ttl int64) int64 { return ttl/100 + 2*milli }

func (p *process) newTicket(c *caller) *ticket {
	p.w.serial++
	t := &ticket{c: c, claim: claim{
		token: fmt.Sprintf("t%07d", p.w.serial), proc: p, weight: c.weight, limit: c.limit, ttl: p.w.ttl,
	}}
	c.ticket = t
	p.tokens[t.token] = t
	return t
}

// come is the beginning of an acquire.
func (c *caller) come() {
	p := c.p
	if p.w.ended {
		return
	}
	c.gone = false
	c.turn++
	k := p.cohorts[[2]int{c.weight, c.limit}]
	if k == nil {
		k = new(cohort)
		p.cohorts[[2]int{c.weight, c.limit}] = k
	}
	if turn := c.turn; p.w.chance(p.w.cancels) {
		p.after(p.w.upTo(3*second), func() {
			if c.turn == turn {
				c.leave(k)
			}
		})
	}
	if k.leader != nil {
		k.waiting = append(k.waiting, c)
		return
	}
	k.lead(c, nil)
}

// lead makes c ask the server, with the ticket of the leader before if there is one.
func (k *cohort) lead(c *caller, t *ticket) {
	if t != nil {
		t.c, c.ticket = c, t
		k.leader, k.parked = t, true
		t.wait(k)
		return
	}
	t = c.p.newTicket(c)
	k.leader, k.parked = t, false
	t.ask(k)
}

// succeed makes the next caller lead. t is the place in the queue of the leader before, nil if it
// has none to give.
func (k *cohort) succeed(t *ticket) (passed bool) {
	k.leader, k.parked = nil, false
	if len(k.waiting) == 0 {
		return false
	}
	c := k.waiting[0]
	k.waiting = k.waiting[1:]
	k.lead(c, t)
	return t != nil
}

// leave is a caller whose context ends while it waits.
func (c *caller) leave(k *cohort) {
	if i := slices.Index(k.waiting, c); i >= 0 {
		k.waiting = slices.Delete(k.waiting, i, i+1)
	} else if t := c.ticket; t != nil && t.state == waits && k.leader == t {
		c.gone = true
		queued := !t.unclear && k.parked
		if !queued || !k.succeed(t) {
			if !queued {
				k.succeed(nil)
			}
			t.giveBack()
		}
	} else {
		return
	}
	c.ticket = nil
	c.p.after(c.p.w.upTo(second), c.come)
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

// wait asks again when that can help.
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

// hold is the beginning of a lease, which the server keeps for life from since, on the local clock.
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

// work is a caller under the lease.
func (t *ticket) work(k *cohort, c *caller) {
	p := t.proc
	c.turn++ // it waits no more
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

// release gives the permit to the first caller that waits, or back.
func (t *ticket) release(k *cohort) {
	p := t.proc
	if t.used < blockOf && p.local()-t.taken < 10*milli && p.local() < t.deadline-p.w.ttl/4 && p.w.streaks {
		c, crossing := t.heir(k)
		if c != nil {
			t.used++
			t.fence++
			t.c, c.ticket = c, t
			p.w.holds(t, t.fence)
			if crossing && p.w.chance(0.1) { // it has just left
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
	if t.state = over; k.leader == t { // without NextLeads
		k.succeed(nil)
	}
	p.w.gone(t)
	t.free()
}

// heir is the first caller of the cohort that waits. If it leads, its place in the queue goes to
// the next, or is given up.
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

// free sends the release until it is answered.
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

// lose ends a lease whose deadline is over.
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

// message is what the server publishes.
type message struct {
	kind      messageKind
	token     string
	fence, at int64
	in        int64
}

type messageKind int

const (
	grantedMessage messageKind = iota
	headMessage
)

// hear acts on a message.
func (p *process) hear(m message) {
	t := p.tokens[m.token]
	if t == nil {
		if m.kind == grantedMessage {
			p.answerUnknown(m.token)
		}
		return
	}
	k := p.cohorts[[2]int{t.weight, t.limit}]
	switch {
	case t.state == holds && m.kind == grantedMessage && p.w.server.off(IgnoreWhenHeld):
		p.answerUnknown(m.token)
	case t.state != waits:
	case m.kind == headMessage:
		t.place = 1
		t.later(k, min(m.in+milli, second))
	case m.kind == grantedMessage:
		since, slip := t.first, int64(0)
		if t.anchored {
			waited := m.at - t.server
			slip = 2 * (waited / 100)
			since = t.local + waited - waited/100
		}
		age := p.local() - since
		if p.w.server.off(FreshMessages) {
			since, age = p.local(), 0
		}
		if age < 0 || age > 100*milli+slip {
			t.ask(k)
			return
		}
		t.hold(k, since, claimFor, m.fence, true)
	}
}

func (p *process) answerUnknown(token string) {
	c := claim{token: token, proc: p, own: p.w.now + p.skew}
	p.w.call(p, func(s *server) answer { return s.release(c, false) }, func(answer, bool) {})
}
