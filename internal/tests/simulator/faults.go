package simulator

import "time"

// Fault is a fault that strikes again and again.
type Fault struct {
	Kind  FaultKind
	Every time.Duration // the average time between two strikes
	For   time.Duration // for a fault that lasts for a while: its longest duration
}

// FaultKind is the kind of a fault.
type FaultKind uint8

// These are the faults of processes, subscriptions and the server. A Scenario sets the faults
// of calls and messages by probabilities.
const (
	Cut   FaultKind = iota + 1 // a subscription is lost, and the server and the process detect this
	Deaf                       // a subscription is lost, and only the server detects this
	Mute                       // a subscription is lost, and for some seconds neither the server nor the process detects this
	Pause                      // a process is stopped
	// PauseOwner stops the process of the next token that gets a lease by hand-off, at about
	// the time when the message arrives. Each strike stops at most one process.
	PauseOwner
	Kill        // a process is killed; its machine closes the connection, so the server soon removes its subscription
	KillOwner   // the present holder's process is killed
	Crash       // a process is killed with its machine; nothing closes the connection, so the server removes its subscription only some seconds later
	Forget      // the server restarts empty
	Move        // the server restarts with all its data, and its clock has stepped
	StepForward // the server's clock steps
	StepBack
	Stall // the server executes nothing for a while; then it executes all waiting calls, in any order
	Full  // the server's memory is full
)

// plague makes a fault strike again and again until the scenario's length is over.
func (w *world) plague(f Fault) {
	var strike func()
	strike = func() {
		if w.pastLength() {
			return
		}
		w.tally.Faults++
		w.strike(f)
		w.schedule(w.randomAround(f.Every), nil, strike)
	}
	w.schedule(w.randomAround(f.Every), nil, strike)
}

func (w *world) strike(f Fault) {
	p := w.procs[w.rng.IntN(len(w.procs))]
	lasts := w.randomBetween(f.For/20, f.For)
	switch f.Kind {
	case Cut:
		w.reconnect(p)
	case Deaf:
		if p.sub != nil {
			w.note(-1, p, "loses its subscription on the server", 0, 0)
			p.inbox.remove(p.sub)
		}
	case Mute:
		w.mute(p)
	case Pause:
		p.pause(lasts)
	case PauseOwner:
		w.ambush = f.For
	case KillOwner:
		w.killOwner()
	case Kill, Crash:
		p.kill(f.Kind == Crash)
	case Forget:
		w.restart(func() {
			w.server.forget()
			w.lossy = true
			w.disturbedAt = w.now
		}, w.randomBetween(150*time.Millisecond, f.For))
	case Move:
		w.restart(func() {
			w.server.step += w.randomBetween(-f.For, f.For)
			w.disturbedAt = w.now
		}, w.randomBetween(time.Millisecond, 300*time.Millisecond))
	case StepForward, StepBack:
		if f.Kind == StepBack {
			lasts = -lasts
		}
		w.note(-1, nil, "the server's clock steps", 0, int64(lasts))
		w.server.step += lasts
		w.disturbedAt = w.now
	case Stall:
		if w.now > w.stalledUntil+time.Second {
			w.note(-1, nil, "the server stalls for", 0, int64(lasts))
			w.stalledUntil = w.now + lasts
		}
	case Full:
		w.note(-1, nil, "the server's memory is full", 0, 0)
		w.server.full = true
		w.schedule(lasts, nil, func() {
			w.note(-1, nil, "the server has memory again", 0, 0)
			w.server.full = false
		})
	}
}

func (w *world) reconnect(p *process) {
	if p.sub == nil || p.dead {
		return
	}
	w.note(-1, p, "loses its subscription", 0, 0)
	p.inbox.remove(p.sub)
	w.schedule(w.delay(), p, p.listen)
}

func (w *world) mute(p *process) {
	s := p.sub
	if s == nil {
		return
	}
	s.mute = true
	w.note(-1, p, "is cut off from its messages", 0, 0)
	w.schedule(w.randomBetween(3*time.Second, 6*time.Second), p, func() {
		if p.sub == s {
			p.listen()
		}
	})
}

// killOwner kills one process that holds a lease, if there is one.
func (w *world) killOwner() {
	for key := range w.books {
		for _, b := range w.books[key].beliefs {
			b.p.kill(false)
			return
		}
	}
}

// restart stops the server for the time downtime, calls change, and starts the server again. All
// connections break, and each process notices this at a time of its own.
func (w *world) restart(change func(), downtime time.Duration) {
	s := &w.server
	if s.isDown {
		return
	}
	s.isDown = true
	s.restarts++
	w.note(-1, nil, "the server goes down", 0, 0)
	for _, p := range w.procs {
		p.inbox.subscribers = nil
		w.schedule(w.delay()+w.randomBetween(0, downtime), p, p.listen)
	}
	w.schedule(downtime, nil, func() {
		change()
		s.isDown = false
		w.note(-1, nil, "the server is up again, its clock ahead by", 0, int64(s.step))
	})
}
