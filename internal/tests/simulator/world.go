package simulator

import (
	"math/rand/v2"
	"time"
)

// world is one run.
type world struct {
	Scenario
	omitted Rule
	rng     *rand.Rand

	now    time.Duration // true time
	agenda agenda
	orders uint64
	events int

	server       server
	procs        []*process // by id; a new process takes the id of a killed process
	holds        []*hold    // by token; nil for a foreign client
	books        []book     // by key
	faultsEnd    time.Duration
	stalledUntil time.Duration // the server executes nothing until this time
	ambush       time.Duration // pause of the next process that gets a lease by hand-off; 0: none
	disturbedAt  time.Duration // when the server last lost its data, or its clock last stepped; -1: never
	lossy        bool          // the server has lost its data, so tombstones may be missing

	spy func(*inbox, message) // if not nil, spy receives all messages instead of the subscribers

	traces     []trace
	violations []Violation
	tally      Tally
}

// Tally counts the events of a run, because a run without events proves nothing.
type Tally struct {
	Grants, Messages, Local, Losses, Cancels, Faults int
}

func newWorld(s Scenario, seed uint64, omitted Rule) *world {
	w := &world{Scenario: s, omitted: omitted, rng: rand.New(rand.NewPCG(seed, 0)), disturbedAt: -1}
	w.holds = make([]*hold, 1, 1024) // token 0 belongs to no waiter
	w.books = make([]book, s.Keys)
	w.traces = make([]trace, s.Keys)
	w.server = server{w: w, rows: make([]row, s.Keys), tombstones: make(map[token]int64)}
	w.procs = make([]*process, s.Processes)
	for id := range w.procs {
		w.start(id)
	}
	for range s.Foreign {
		w.startForeign()
	}
	for _, f := range s.Faults {
		w.plague(f)
	}
	w.faultsEnd = s.Length
	w.checkWaits()
	return w
}

// run executes all events. After the scenario's Length, no new fault and no new wait begins, but
// all remaining waiters must still get the lease.
func (w *world) run() {
	end := w.Length + w.settle()
	for len(w.agenda) > 0 && len(w.violations) == 0 {
		e := w.agenda.pop()
		if e.at > end {
			break
		}
		w.now = e.at
		if p := e.owner; p != nil {
			if p.dead {
				continue
			}
			if p.asleep {
				p.later = append(p.later, e)
				continue
			}
		}
		w.events++
		e.do()
	}
	if len(w.violations) == 0 {
		w.checkRest()
	}
}

// settle returns how long after the last fault a waiter may still wait for its lease.
func (w *world) settle() time.Duration {
	return 2*time.Minute + time.Duration(w.Processes*w.Workers)*(w.Hold+3*w.TTL)
}

// pastLength reports whether the Length of the scenario has passed, so that no new wait and no
// new fault may begin.
func (w *world) pastLength() bool { return w.now >= w.Length }

// schedule plans a call of do after the true time d. The event belongs to the process owner; nil:
// to no process.
func (w *world) schedule(d time.Duration, owner *process, do func()) {
	w.orders++
	w.agenda.push(event{at: w.now + max(d, 0), order: w.orders, owner: owner, do: do})
}

func (w *world) newToken() token {
	w.holds = append(w.holds, nil)
	return token(len(w.holds) - 1)
}

// start starts the process with this id, and its workers.
func (w *world) start(id int) {
	p := newProcess(w, id)
	w.procs[id] = p
	for range w.Workers {
		work := &worker{p: p}
		work.think()
	}
}

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *world) randomBetween(a, b time.Duration) time.Duration {
	if b <= a {
		return a
	}
	return a + time.Duration(w.rng.Int64N(int64(b-a)))
}

func (w *world) randomAround(d time.Duration) time.Duration {
	return time.Duration(w.rng.ExpFloat64() * float64(d))
}

func (w *world) pick(a, b time.Duration) time.Duration {
	if w.chance(0.5) {
		return a
	}
	return b
}

// backoff returns the pause before a call is repeated.
func (w *world) backoff() time.Duration {
	return w.randomBetween(5*time.Millisecond, 60*time.Millisecond)
}
