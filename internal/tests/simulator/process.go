package simulator

import "time"

// process is one engine: its clock, its inbox, and the rooms in which its workers wait. When a
// process is killed, a new process takes its place.
type process struct {
	w    *world
	id   int
	born time.Duration
	rate float64 // how fast its clock runs, compared with true time
	base time.Duration

	dead   bool
	asleep bool
	later  []event       // events that wait while the process is stopped
	wokeAt time.Duration // -1: never

	inbox        *inbox
	sub          *subscription // the subscription that the server has confirmed; nil: no subscription is confirmed
	opening      bool
	subscribedAt time.Duration // when the subscription was confirmed, by the clock of the process
	epoch        int           // grows whenever messages may have been lost

	rooms []*room // the shared rooms, by key; a room whose field alone is true is not in this list
	seek  []*hold // all waiting tokens
}

func newProcess(w *world, id int) *process {
	p := &process{w: w, id: id, born: w.now, wokeAt: -1, rate: 1, rooms: make([]*room, w.Keys)}
	p.rate += w.Drift * (2*w.rng.Float64() - 1)
	p.base = w.randomBetween(0, time.Hour)
	p.inbox = &inbox{owner: p}
	for key := range p.rooms {
		p.rooms[key] = &room{p: p, key: key}
	}
	return p
}

// now returns the time by the clock of the process.
func (p *process) now() time.Duration {
	return p.base + time.Duration(float64(p.w.now-p.born)*p.rate)
}

// trueAt returns the true time at which the clock of the process shows t.
func (p *process) trueAt(t time.Duration) time.Duration {
	return p.born + time.Duration(float64(t-p.base)/p.rate)
}

// trueFor returns the true time in which the clock of the process advances by d.
func (p *process) trueFor(d time.Duration) time.Duration {
	return time.Duration(float64(d) / p.rate)
}

// schedule plans a call of do for the time when the clock of the process has advanced by d.
func (p *process) schedule(d time.Duration, do func()) {
	p.w.schedule(p.trueFor(max(d, 0)), p, do)
}

// onMessage handles the message m about a key. The token of the message may be in any state.
func (p *process) onMessage(key int, m message) {
	h := p.w.holds[m.token]
	p.w.note(key, p, "is told of", m.token, int64(m.kind))
	switch {
	case m.kind == messageHead:
		h.onHead(m.claim)
	case h.state == seeking:
		h.onGrant(m)
	case h.state == held || h.state == releasing:
		if p.w.omitted == IgnoreIfHeld {
			h.answerWithRelease()
		}
	default: // this token is finished, but the process that released the lease to it did not know this
		h.answerWithRelease()
	}
}

// recheckAll makes all waiting tokens of the process ask now, because messages may have been
// lost.
func (p *process) recheckAll() {
	if p.w.omitted == Recheck {
		return
	}
	for _, h := range p.seek {
		h.askAfter(0)
	}
}

// pause stops the process for the time d, as SIGSTOP does. Events that are due in this time
// happen when the process continues, in any order.
func (p *process) pause(d time.Duration) {
	if p.asleep || p.dead {
		return
	}
	p.asleep = true
	p.w.note(-1, p, "is stopped", 0, int64(d))
	p.w.schedule(d, nil, p.resume)
}

func (p *process) resume() {
	if p.dead {
		return
	}
	w := p.w
	p.asleep, p.wokeAt = false, w.now
	w.note(-1, p, "goes on", 0, 0)
	w.rng.Shuffle(len(p.later), func(i, j int) { p.later[i], p.later[j] = p.later[j], p.later[i] })
	for _, e := range p.later {
		w.schedule(0, p, e.do)
	}
	p.later = nil
}

// kill ends the process, and starts another process soon. If machine is true, the machine of the
// process dies too, so the server still counts the subscription for some seconds.
func (p *process) kill(machine bool) {
	if p.dead {
		return
	}
	w := p.w
	p.dead, p.later, p.seek = true, nil, nil
	w.note(-1, p, "is killed", 0, 0)
	w.recordDeath(p)
	counted := w.delay()
	if machine {
		counted = w.randomBetween(time.Second, 10*time.Second)
	}
	w.schedule(counted, nil, func() { p.inbox.subscribers = nil })
	w.schedule(w.randomBetween(0, 2*time.Second), nil, func() { w.start(p.id) })
}
