package semaphore

import "slices"

// blockOf is the number of fences that a permit reserves for the callers of its process.
const blockOf = 4

// process is one Engine and its callers. The callers that want the same weight and limit are a
// cohort.
type process struct {
	w         *world
	number    int
	rate      float64 // how fast its clock runs
	skew      int64   // how far its wall clock is ahead
	stopped   int64   // the process is stopped until this time
	dead      bool
	connected int64 // the server counts the connection of a dead process until this time
	cohorts   map[[2]int]*cohort
	tokens    map[string]*ticket // the tokens that wait, hold units, or are being released
}

// localTime returns the time by the clock of the process, which never steps.
func (p *process) localTime() int64 { return int64(float64(p.w.now) * p.rate) }

// schedule plans a call of do for the time when the clock of the process has advanced by d. If
// the process has died by then, do is not called. If the process is stopped at that time, do is
// called when the process continues.
func (p *process) schedule(d int64, do func()) {
	p.w.due(p.w.now+int64(float64(d)/p.rate), func() { p.run(do) })
}

func (p *process) run(do func()) {
	switch {
	case p.dead:
	case p.w.now < p.stopped:
		p.w.due(p.stopped, func() { p.run(do) })
	default:
		do()
	}
}

// cohort has the callers that want units on the same terms.
type cohort struct {
	leader  *ticket
	parked  bool // the leader waits in the server's queue, and its place may pass to the next leader
	waiting []*caller
}

// A caller takes units, holds them for a while, and asks again later.
type caller struct {
	p      *process
	weight int
	limit  int
	ticket *ticket
	gaveUp bool // true: the caller has given up its present wait
	turn   int  // number of the present wait, so that timers of earlier waits do nothing
}

func (p *process) drift(ttl int64) int64 { return ttl/100 + 2*milli }

// startAcquire begins an acquire of the caller c.
func (c *caller) startAcquire() {
	p := c.p
	if p.w.ended {
		return
	}
	c.gaveUp = false
	c.turn++
	k := p.cohorts[[2]int{c.weight, c.limit}]
	if k == nil {
		k = new(cohort)
		p.cohorts[[2]int{c.weight, c.limit}] = k
	}
	if turn := c.turn; p.w.chance(p.w.cancels) {
		p.schedule(p.w.upTo(3*second), func() {
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

// lead makes c the leader, the caller that asks the server. t is the ticket of the former leader;
// if t is nil, c gets a new ticket.
func (k *cohort) lead(c *caller, t *ticket) {
	if t != nil {
		t.c, c.ticket = c, t
		k.leader, k.parked = t, true
		t.planNextAsk(k)
		return
	}
	t = c.p.newTicket(c)
	k.leader, k.parked = t, false
	t.ask(k)
}

// promoteNext makes the first waiting caller the leader. t is the ticket of the former leader,
// with its place in the queue, or nil. It reports whether a caller has taken over t.
func (k *cohort) promoteNext(t *ticket) (passed bool) {
	k.leader, k.parked = nil, false
	if len(k.waiting) == 0 {
		return false
	}
	c := k.waiting[0]
	k.waiting = k.waiting[1:]
	k.lead(c, t)
	return t != nil
}

// leave ends the caller's wait in the cohort k, because the caller's context has ended.
func (c *caller) leave(k *cohort) {
	if i := slices.Index(k.waiting, c); i >= 0 {
		k.waiting = slices.Delete(k.waiting, i, i+1)
	} else if t := c.ticket; t != nil && t.state == waits && k.leader == t {
		c.gaveUp = true
		queued := !t.unclear && k.parked
		if !queued || !k.promoteNext(t) {
			if !queued {
				k.promoteNext(nil)
			}
			t.giveBack()
		}
	} else {
		return
	}
	c.ticket = nil
	c.p.schedule(c.p.w.upTo(second), c.startAcquire)
}
