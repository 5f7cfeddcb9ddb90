package simulator

import "time"

// startForeign begins a client of another library. The client takes a lock with SET NX PX, and
// releases it with a compare-and-delete, again and again.
func (w *world) startForeign() {
	p := newProcess(w, len(w.procs))
	var poll func()
	poll = func() {
		if w.pastLength() {
			return
		}
		key := w.rng.IntN(w.Keys)
		t := w.newToken()
		sent := p.now()
		deadline := sent + w.TTL - w.TTL/50 - 2*time.Millisecond
		w.call(p, func() reply {
			r := w.server.setNX(key, t, w.TTL)
			if r.state == granted {
				w.note(key, nil, "granted to a foreign client", t, 0)
			}
			return r
		}, func(r reply, o outcome) {
			if o != answered || r.state != granted || p.now() >= deadline {
				p.schedule(w.randomBetween(time.Millisecond, 40*time.Millisecond), poll)
				return
			}
			b := w.recordForeignLease(key, p, t, deadline)
			p.schedule(min(w.randomAround(w.Hold), w.TTL/2), func() {
				w.removeBelief(key, b)
				w.call(p, func() reply { return w.server.delIf(key, t) }, func(reply, outcome) {
					p.schedule(w.randomAround(w.Think), poll)
				})
			})
		})
	}
	p.schedule(w.randomAround(w.Think), poll)
}
