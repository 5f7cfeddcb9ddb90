package semaphore

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// Scenario has the settings of a run.
type Scenario struct {
	limits  []int // the limits n that callers send with their requests
	heavy   float64
	callers int     // number of callers in each process
	most    int     // the largest number of waiters that one step serves
	delays  float64 // share of calls and messages that take up to 4 s
	losses  float64 // share of lost requests, answers and messages
	stops   float64 // how often per second a process is stopped
	kills   float64
	// share of kills after which the server still counts the dead process's connection for a
	// while
	lingers  float64
	cancels  float64 // share of acquires that are cancelled
	extends  float64 // share of leases that are extended
	evicts   float64 // evictions per second; each evicts the lease (L) or the set of permits (P)
	foreign  float64 // programs that lock the key, per second
	skews    int64   // largest skew of the clients' wall clocks
	steps    int64   // largest step of the server's clock
	ttl      int64
	longest  int64 // the longest work
	pause    int64
	streaks  bool // true: callers of a process pass permits on to each other
	oneStops bool // one process at a time is stopped, beginning early in the run
}

// Result is the result of a run.
type Result struct {
	Over, Fences, Undone, Overtaken, Left int
	Idle                                  int64 // the longest time, in µs, that a waiter has waited although enough units were free
	Wasted                                int64 // the sum of all such times, in µs
	Grants                                int
}

type world struct {
	Scenario
	*rand.Rand
	omitted Rule
	now     int64
	agenda  agenda
	serial  int
	server  *server
	procs   []*process
	ended   bool
	result  Result
	mail    func(message) // if mail is not nil, the messages go to mail and not through the simulated network

	believed  map[*ticket]bool
	fences    map[int64]bool
	givenBack map[string]bool

	overtaken int
	idleSince int64
	idleFor   string
}

// Run simulates the scenario s for some virtual seconds, and then ends all waits and holds. The
// parameter omitted is the rule that the run leaves out; 0: none.
func Run(s Scenario, omitted Rule, seed uint64, seconds int64) Result {
	w := &world{
		Scenario: s, Rand: rand.New(rand.NewPCG(seed, 1)), omitted: omitted, now: 1_000_000 * second,
		believed: make(map[*ticket]bool), fences: make(map[int64]bool), givenBack: make(map[string]bool),
	}
	w.server = &server{w: w, tombstones: make(map[string]int64), permits: make(map[string]*permit)}
	for range 6 {
		w.startProcess()
	}
	until := w.now + seconds*second
	w.faults(until)
	w.checkIdle()
	w.play(until)
	w.ended = true
	w.play(until + 150*second)
	w.server.expire()
	w.result.Overtaken = w.overtaken
	if left := len(w.server.permits) + len(w.server.queue); left > 0 {
		w.result.Left = left
	}
	return w.result
}

func (w *world) startProcess() {
	p := &process{
		w: w, number: len(w.procs), rate: 1 + (w.Float64()-0.5)*0.016, cohorts: make(map[[2]int]*cohort),
		tokens: make(map[string]*ticket),
	}
	if w.skews > 0 {
		p.skew = w.Int64N(2*w.skews) - w.skews
	}
	w.procs = append(w.procs, p)
	for range w.callers {
		c := &caller{p: p, weight: 1, limit: w.limits[w.IntN(len(w.limits))]}
		if w.chance(w.heavy) {
			c.weight = 1 + w.IntN(c.limit)
		}
		p.schedule(w.upTo(second), c.startAcquire)
	}
}

func (w *world) chance(p float64) bool { return p > 0 && w.Float64() < p }

func (w *world) upTo(d int64) int64 { return 1 + w.Int64N(max(d, 1)) }

func (w *world) work() int64 { return w.upTo(w.longest) }

func (w *world) sorted(m map[string]*permit) []string { return slices.Sorted(maps.Keys(m)) }

// delay returns a random time for the way of one call or message.
func (w *world) delay() int64 {
	if w.chance(w.delays) {
		return w.upTo(4 * second)
	}
	return 100 + w.upTo(900)
}

// call sends a step of p to the server. It calls onAnswer with the answer, or with ok set to
// false if no answer has arrived within a second.
func (w *world) call(p *process, step func(*server) answer, onAnswer func(a answer, ok bool)) {
	done := false
	p.schedule(second, func() {
		if !done {
			done = true
			onAnswer(answer{}, false)
		}
	})
	if w.chance(w.losses) {
		return
	}
	w.due(w.now+w.delay(), func() {
		w.server.expire()
		a := step(w.server)
		if w.chance(w.losses) {
			return
		}
		w.due(w.now+w.delay(), func() {
			p.run(func() {
				if !done {
					done = true
					onAnswer(a, true)
				}
			})
		})
	})
}

func (w *world) send(p *process, m message) {
	if w.mail != nil {
		w.mail(m)
		return
	}
	if !w.chance(w.losses) {
		w.due(w.now+w.delay(), func() { p.run(func() { p.onMessage(m) }) })
	}
}

// faults plans the faults of the processes and of the server, up to the time end.
func (w *world) faults(end int64) {
	often := func(perSecond float64, do func()) {
		if perSecond == 0 {
			return
		}
		for at := w.now; at < end; {
			at += int64(w.ExpFloat64() / perSecond * float64(second))
			w.due(at, do)
		}
	}
	living := func() *process {
		var all []*process
		for _, p := range w.procs {
			if !p.dead && p.stopped <= w.now {
				all = append(all, p)
			}
		}
		if len(all) == 0 {
			return nil
		}
		return all[w.IntN(len(all))]
	}
	often(w.stops, func() {
		stopped := slices.ContainsFunc(w.procs, func(p *process) bool { return !p.dead && p.stopped > w.now })
		if p := living(); p != nil && (!w.oneStops || !stopped) {
			p.stopped = w.now + w.upTo(20*second)
		}
	})
	often(w.kills, func() {
		if p := living(); p != nil {
			p.dead = true
			if w.chance(w.lingers) {
				p.connected = w.now + w.upTo(15*second)
			}
			for t := range w.believed {
				if t.proc == p {
					delete(w.believed, t)
				}
			}
			w.startProcess()
		}
	})
	often(w.evicts, func() {
		switch s := w.server; {
		case s.lease.kind != shield || s.lostP: // if L and P are both evicted, the server has lost the semaphore
		case w.chance(0.5):
			s.lease = holder{}
		default:
			s.permits, s.lostP = make(map[string]*permit), true
		}
	})
	often(w.foreign, func() {
		if w.server.expire(); w.server.lease.kind == free && len(w.server.permits) == 0 {
			w.server.lease = holder{foreign, w.server.now() + w.upTo(2*second)}
		}
	})
	if w.steps > 0 {
		often(0.1, func() { w.server.clockOffset += w.Int64N(2*w.steps) - w.steps })
	}
}

// recordGrant records a grant of the server. It counts a violation if the token of p was given
// back before.
func (w *world) recordGrant(p *permit) {
	if w.result.Grants++; w.givenBack[p.token] {
		w.result.Undone++
	}
}

func (w *world) recordGivenBack(token string) { w.givenBack[token] = true }

// recordHold records that a caller begins to hold units under the ticket t with this fence.
func (w *world) recordHold(t *ticket, fence int64) {
	if w.fences[fence] {
		w.result.Fences++
	}
	w.fences[fence] = true
	w.believed[t] = true
	used, limit := 0, 1<<30
	for other := range w.believed {
		if other.proc.localTime() >= other.deadline {
			delete(w.believed, other)
			continue
		}
		used += other.weight
		limit = min(limit, other.limit)
	}
	if used > limit {
		w.result.Over++
	}
}

func (w *world) recordHoldEnd(t *ticket) { delete(w.believed, t) }

// checkIdle looks, 50 times a second, for a living waiter that waits although enough units are
// free.
func (w *world) checkIdle() {
	who := w.idler()
	if who != "" {
		w.result.Wasted += 20 * milli
	}
	if who == "" || who != w.idleFor {
		w.idleFor, w.idleSince = who, w.now
	} else {
		w.result.Idle = max(w.result.Idle, w.now-w.idleSince)
	}
	w.due(w.now+20*milli, func() {
		if !w.ended {
			w.checkIdle()
		}
	})
}

// idler returns the token or the process of a living waiter that could hold units now, or "" if
// there is none.
func (w *world) idler() string {
	s := w.server
	if s.lease.kind == foreign && s.lease.ends > s.now() || s.lostP {
		return ""
	}
	used, limit := 0, 1<<30
	for t := range w.believed {
		if t.proc.localTime() < t.deadline {
			used += t.weight
			limit = min(limit, t.limit)
		}
	}
	lives := func(p *process) bool { return !p.dead && p.stopped <= w.now }
	fits := func(weight, n int) bool { return used+weight <= min(n, limit) }
	for _, e := range s.queue {
		if lives(e.proc) {
			if t := e.proc.tokens[e.token]; t != nil && t.state == waits && fits(e.weight, e.limit) {
				return e.token
			}
			return ""
		}
	}
	for _, p := range w.procs {
		for _, k := range p.cohorts {
			if len(k.waiting) > 0 && lives(p) && fits(k.waiting[0].weight, k.waiting[0].limit) {
				return fmt.Sprintf("process %d", p.number)
			}
		}
	}
	return ""
}

// event is a call of the function do at a point in time.
type event struct {
	at, number int64
	do         func()
}

type agenda struct {
	events []event
	number int64
}

func (a *agenda) Len() int { return len(a.events) }
func (a *agenda) Less(i, j int) bool {
	x, y := a.events[i], a.events[j]
	return x.at < y.at || x.at == y.at && x.number < y.number
}
func (a *agenda) Swap(i, j int) { a.events[i], a.events[j] = a.events[j], a.events[i] }
func (a *agenda) Push(x any)    { a.events = append(a.events, x.(event)) }
func (a *agenda) Pop() any {
	last := a.events[len(a.events)-1]
	a.events = a.events[:len(a.events)-1]
	return last
}

func (w *world) due(due int64, do func()) {
	w.agenda.number++
	heap.Push(&w.agenda, event{max(due, w.now), w.agenda.number, do})
}

func (w *world) play(end int64) {
	for w.agenda.Len() > 0 && w.agenda.events[0].at <= end {
		e := heap.Pop(&w.agenda).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}
