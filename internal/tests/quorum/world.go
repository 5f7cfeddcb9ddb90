package quorum

import "math/rand/v2"

// message is a message on its way to a node or back.
type message struct {
	kind         kind
	node, client int
	token        int
	hint, block  int64
	minted       int64
	fence        int64
	tenancy      int
	isReply, yes bool
}

type kind uint8

const (
	voting kind = iota
	confirming
	releasing
)

// world is the state of one run.
type world struct {
	Scenario
	Result
	rng     *rand.Rand
	now     int64
	nodes   []node
	clients []client
	mail    []message
	tokens  int

	fences  map[int64]bool
	highest int64      // the last fence of all grants so far
	history [][]tenure // for each node: the last few grants that had its vote
}

// tenure is one grant in the history of a node.
type tenure struct {
	tenancy     int
	first, last int64
}

// Run makes the given number of random steps of the scenario s.
func Run(s Scenario, seed uint64, steps int) Result {
	w := &world{
		Scenario: s, rng: rand.New(rand.NewPCG(seed, 1)), now: 1_000_000,
		nodes: make([]node, s.Nodes), clients: make([]client, s.Clients),
		fences: make(map[int64]bool), history: make([][]tenure, s.Nodes),
	}
	for i := range w.nodes {
		w.nodes[i].offset = w.differ()
	}
	for i := range w.clients {
		w.clients[i] = client{world: w, index: i, offset: w.differ()}
	}
	for range steps {
		w.step()
	}
	return w.Result
}

func (w *world) differ() int64 { return w.rng.Int64N(w.Differ+1) - w.Differ/2 }

func (w *world) need() int { return w.Nodes/2 + 1 }

// step makes one random step.
func (w *world) step() {
	w.now += w.rng.Int64N(3)
	if w.Forget > 0 && w.rng.IntN(w.Forget) == 0 {
		w.nodes[w.rng.IntN(w.Nodes)].forget(w.now, &w.Scenario)
		w.Forgot++
	}
	n := &w.nodes[w.rng.IntN(w.Nodes)]
	if n.expire(w.now) || w.AnyExpiry && n.token != 0 && w.rng.IntN(400) == 0 {
		n.token = 0
		w.Expired++
	}
	if len(w.mail) == 0 || w.rng.IntN(4) == 0 {
		w.clients[w.rng.IntN(w.Clients)].act()
		return
	}
	i := w.rng.IntN(len(w.mail))
	m := w.mail[i]
	if w.rng.IntN(100) >= w.Repeat { // otherwise the message stays in w.mail, and may arrive again
		w.mail[i] = w.mail[len(w.mail)-1]
		w.mail = w.mail[:len(w.mail)-1]
	}
	if w.rng.IntN(100) < w.Lose {
		return
	}
	w.deliver(m)
}

func (w *world) deliver(m message) {
	if m.isReply {
		w.clients[m.client].onReply(m)
		return
	}
	n := &w.nodes[m.node]
	n.expire(w.now)
	switch m.kind {
	case voting:
		m, m.yes = n.vote(w.now, &w.Scenario, m)
	case confirming:
		m.yes, m.tenancy = n.confirm(&w.Scenario, m), n.tenancy
	case releasing:
		n.release(m)
		return
	}
	m.isReply = true
	w.mail = append(w.mail, m)
}

// granted checks the invariants for the lease that the client c has just got.
func (w *world) granted(c *client) {
	w.Grants++
	first, last := c.fence, c.fence+c.block-1
	for f := first; f <= last; f++ {
		if w.fences[f] {
			w.Broken[Unique]++
			break
		}
		w.fences[f] = true
	}
	if first <= c.fenceBefore {
		w.Broken[Forward]++
	}
	w.highest = max(w.highest, last)
	for i, v := range c.votes {
		if !v.counts {
			continue
		}
		for _, t := range w.history[i] {
			if t.tenancy < v.tenancy && t.last >= first || t.tenancy > v.tenancy && t.first <= last {
				w.Broken[InOrder]++
			}
		}
		w.history[i] = append(w.history[i], tenure{v.tenancy, first, last})
		if len(w.history[i]) > 32 {
			w.history[i] = w.history[i][16:]
		}
	}
	if !w.AnyExpiry {
		for i := range w.clients {
			if other := &w.clients[i]; other != c && other.holds() {
				w.Broken[Alone]++
			}
		}
	}
}
