package simulator

import "time"

// outcome is what a caller knows about a call.
type outcome uint8

const (
	answered outcome = iota + 1
	refused          // the reply proves that the call had no effect
	unclear          // the call may have run, may run later, or may never run
)

// call sends a script to the server once, and delivers the result. The request or the reply may be
// lost or late. A request may also run after its caller has given it up.
func (w *world) call(p *process, run func() reply, done func(reply, outcome)) {
	w.callLate(p, 0, run, done)
}

// callLate does the work of call for a request that is sent later.
func (w *world) callLate(p *process, later time.Duration, run func() reply, done func(reply, outcome)) {
	c := &attempt{w: w, p: p, run: run, done: done, tries: 1}
	if w.without == SentOnce {
		c.tries = 4
	}
	c.send(later)
}

// attempt is one transmission of a call.
type attempt struct {
	w     *world
	p     *process
	run   func() reply
	done  func(reply, outcome)
	tries int
	back  time.Duration // how long the reply is on its way
	until time.Duration // when the caller gives the call up
	lost  bool          // the reply will be lost
	life  int           // how often the server had restarted when the call was sent
	late  bool          // the caller gave the call up before the server executed it
}

// send sends the request, which may get lost.
func (c *attempt) send(later time.Duration) {
	w, there, patience := c.w, c.w.delay()+later, c.p.trueFor(c.w.Patience)
	c.back, c.until, c.life = w.delay(), w.now+patience, w.server.life
	if w.chance(w.LostRequest) {
		w.after(w.pick(there, patience), c.p, c.failed)
		return
	}
	c.lost = w.chance(w.LostReply)
	if w.chance(w.Zombie) {
		there += w.between(patience/2, w.pick(2*w.TTL, patience+6*time.Second))
	}
	c.arrive(there)
}

// arrive lets the request reach the server after a while.
func (c *attempt) arrive(there time.Duration) {
	w := c.w
	if w.now+there > c.until && !c.late {
		c.late = true
		w.after(c.until-w.now, c.p, c.failed)
	}
	w.after(there, nil, func() {
		if stalled := w.stalled - w.now; stalled > 0 {
			c.arrive(stalled + w.between(0, 200*time.Microsecond)) // calls that wait for a stalled server run in any order
			return
		}
		c.execute()
	})
}

func (c *attempt) execute() {
	w, s := c.w, &c.w.server
	gone := s.down || s.life != c.life // the connection is lost, although the server may work again
	switch {
	case c.late && gone:
		return
	case c.late:
		c.run()
		return
	case gone && w.chance(0.5) || !gone && w.chance(w.Refused):
		w.after(c.back, c.p, func() { c.done(reply{}, refused) })
		return
	case gone:
		w.after(c.back, c.p, c.failed)
		return
	}
	r := c.run()
	switch patience := c.until - w.now; {
	case c.lost || c.back > patience:
		w.after(w.pick(c.back, patience), c.p, c.failed)
	case r.state == noMemory:
		w.after(c.back, c.p, func() { c.done(r, refused) })
	default:
		w.after(c.back, c.p, func() {
			// The process was stopped for longer than the time-out. So it may notice the time-out
			// before the reply.
			if c.p.wokeAt == w.now && w.chance(0.3) {
				c.failed()
				return
			}
			c.done(r, answered)
		})
	}
}

// failed ends an attempt that has no answer.
func (c *attempt) failed() {
	if c.tries > 1 {
		again := &attempt{w: c.w, p: c.p, run: c.run, done: c.done, tries: c.tries - 1}
		again.send(0)
		return
	}
	c.done(reply{}, unclear)
}

// delay returns how long a message is on its way. This time is usually short, but sometimes very
// long.
func (w *world) delay() time.Duration {
	d := 40*time.Microsecond + time.Duration(w.rng.ExpFloat64()*float64(40*time.Microsecond))
	if w.chance(w.Tail) {
		d += time.Duration(w.rng.ExpFloat64() * float64(60*time.Millisecond))
	}
	return d
}
