package simulator

import "time"

// outcome is what a caller knows about the effect of its call.
type outcome uint8

const (
	answered outcome = iota + 1
	refused          // the reply proves that the call had no effect
	unclear          // the call may have run, may run later, or may never run
)

// call sends a call of p to the server. The server executes the call by the function run, and
// then p gets the reply by the function onResult. The request or the reply may be lost or late.
// A request may also run after its caller has given it up.
func (w *world) call(p *process, run func() reply, onResult func(reply, outcome)) {
	c := &attempt{w: w, p: p, run: run, onResult: onResult, tries: 1}
	if w.omitted == SentOnce {
		c.tries = 4
	}
	c.send()
}

// attempt is one transmission of a call.
type attempt struct {
	w          *world
	p          *process
	run        func() reply
	onResult   func(reply, outcome)
	tries      int
	replyDelay time.Duration // how long the reply takes
	givenUpAt  time.Duration // when the caller gives the call up
	replyLost  bool          // the reply will be lost
	restarts   int           // how often the server had restarted when the call was sent
	late       bool          // the caller gave the call up before the server executed it
}

// send sends the request, which may get lost.
func (c *attempt) send() {
	w, requestDelay, patience := c.w, c.w.delay(), c.p.trueFor(c.w.Patience)
	c.replyDelay, c.givenUpAt, c.restarts = w.delay(), w.now+patience, w.server.restarts
	if w.chance(w.LostRequest) {
		w.schedule(w.pick(requestDelay, patience), c.p, c.onNoReply)
		return
	}
	c.replyLost = w.chance(w.LostReply)
	if w.chance(w.Zombie) {
		requestDelay += w.randomBetween(patience/2, w.pick(2*w.TTL, patience+6*time.Second))
	}
	c.arrive(requestDelay)
}

// arrive makes the request reach the server after requestDelay.
func (c *attempt) arrive(requestDelay time.Duration) {
	w := c.w
	if w.now+requestDelay > c.givenUpAt && !c.late {
		c.late = true
		w.schedule(c.givenUpAt-w.now, c.p, c.onNoReply)
	}
	w.schedule(requestDelay, nil, func() {
		if stalled := w.stalledUntil - w.now; stalled > 0 {
			c.arrive(stalled + w.randomBetween(0, 200*time.Microsecond)) // calls that wait for a stalled server run in any order
			return
		}
		c.execute()
	})
}

func (c *attempt) execute() {
	w, s := c.w, &c.w.server
	gone := s.isDown || s.restarts != c.restarts // the connection is lost, although the server may work again
	switch {
	case c.late && gone:
		return
	case c.late:
		c.run()
		return
	case gone && w.chance(0.5) || !gone && w.chance(w.Refused):
		w.schedule(c.replyDelay, c.p, func() { c.onResult(reply{}, refused) })
		return
	case gone:
		w.schedule(c.replyDelay, c.p, c.onNoReply)
		return
	}
	r := c.run()
	switch patience := c.givenUpAt - w.now; {
	case c.replyLost || c.replyDelay > patience:
		w.schedule(w.pick(c.replyDelay, patience), c.p, c.onNoReply)
	case r.state == noMemory:
		w.schedule(c.replyDelay, c.p, func() { c.onResult(r, refused) })
	default:
		w.schedule(c.replyDelay, c.p, func() {
			// The process was stopped while the reply arrived. When it continues, its time-out
			// may also be over, and it may notice the time-out first.
			if c.p.wokeAt == w.now && w.chance(0.3) {
				c.onNoReply()
				return
			}
			c.onResult(r, answered)
		})
	}
}

// onNoReply handles an attempt that has no answer: it tries again, or reports an unclear result.
func (c *attempt) onNoReply() {
	if c.tries > 1 {
		again := &attempt{w: c.w, p: c.p, run: c.run, onResult: c.onResult, tries: c.tries - 1}
		again.send()
		return
	}
	c.onResult(reply{}, unclear)
}

// delay returns a random time that one message needs to its destination. The time is usually
// short, but sometimes very long.
func (w *world) delay() time.Duration {
	d := 40*time.Microsecond + time.Duration(w.rng.ExpFloat64()*float64(40*time.Microsecond))
	if w.chance(w.Tail) {
		d += time.Duration(w.rng.ExpFloat64() * float64(60*time.Millisecond))
	}
	return d
}
