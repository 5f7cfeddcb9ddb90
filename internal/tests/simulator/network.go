package simulator

import "time"

// outcome is what a caller knows about a call.
type outcome uint8

const (
	answered outcome = iota + 1
	refused          // it proved that nothing was done
	unclear          // it may have run, may run yet, or never will
)

// call sends a script to the server, once, and says what came of it. The request or the reply may be lost or late; a
// request may also run after its caller has given it up.
func (w *world) call(p *process, run func() reply, done func(reply, outcome)) {
	tries := 1
	if w.without == SentOnce {
		tries = 4
	}
	w.attempt(p, tries, run, done)
}

func (w *world) attempt(p *process, tries int, run func() reply, done func(reply, outcome)) {
	there, back := w.delay(), w.delay()
	patience := p.trueFor(w.Patience)
	if w.chance(w.LostRequest) {
		w.after(w.pick(there, patience), p, func() { w.failed(p, tries, run, done) })
		return
	}
	lost := w.chance(w.LostReply)
	if w.chance(w.Zombie) {
		there += w.between(patience/2, w.pick(2*w.TTL, patience+6*time.Second))
	}
	if there > patience { // given up before it runs
		w.after(patience, p, func() { w.failed(p, tries, run, done) })
	}
	life := w.server.life
	w.after(there, nil, func() {
		if there > patience {
			if w.server.life == life && !w.server.down {
				run()
			}
			return
		}
		switch {
		case w.server.down || w.server.life != life:
			if w.chance(0.5) {
				w.after(back, p, func() { done(reply{}, refused) })
				return
			}
			w.after(back, p, func() { w.failed(p, tries, run, done) })
			return
		case w.chance(w.Refused):
			w.after(back, p, func() { done(reply{}, refused) })
			return
		}
		r := run()
		switch {
		case lost || there+back > patience:
			w.after(w.pick(back, patience-there), p, func() { w.failed(p, tries, run, done) })
		case r.state == noMemory:
			w.after(back, p, func() { done(r, refused) })
		default:
			w.after(back, p, func() {
				if p.wokeAt == w.now && w.chance(0.3) { // stopped past the time-out: which of the two was noticed?
					w.failed(p, tries, run, done)
					return
				}
				done(r, answered)
			})
		}
	})
}

// failed is the end of an attempt without an answer.
func (w *world) failed(p *process, tries int, run func() reply, done func(reply, outcome)) {
	if tries > 1 {
		w.attempt(p, tries-1, run, done)
		return
	}
	done(reply{}, unclear)
}

// delay is one way through the network: short, with a heavy tail.
func (w *world) delay() time.Duration {
	d := 40*time.Microsecond + time.Duration(w.rng.ExpFloat64()*float64(40*time.Microsecond))
	if w.chance(w.Tail) {
		d += time.Duration(w.rng.ExpFloat64() * float64(60*time.Millisecond))
	}
	return d
}
