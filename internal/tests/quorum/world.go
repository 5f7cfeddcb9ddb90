package quorum

import "math/rand/v2"

// Rule is a rule of the protocol.
type Rule int

// The rules. A run leaves out at most one of them.
const (
	None       Rule = iota
	Quarantine      // a node that may have forgotten its votes does not vote for a while
	Identity        // a marker counts only on the server for whose data it was written
	Tombstone       // the release of an unclear vote leaves a tombstone
	Majority        // more than half of the nodes must vote
	Window          // a wait begins only when the node's clock agrees with the client's time
	Raise           // votes with different fences are raised to the largest of them
)

func (r Rule) String() string {
	return [...]string{"none", "quarantine", "identity", "tombstone", "majority", "window", "raise"}[r]
}

// Scenario has the settings of a run. Times are in ticks.
type Scenario struct {
	Nodes, Clients int
	TTL            int64 // of each lease, and the longest
	Skew           int64 // the largest difference of clocks that the protocol assumes
	Ahead          int64 // how far counters may be ahead of the clocks at the beginning
	Wait           int64 // how long a node waits that may have forgotten its votes
	Forget         int   // on average, a node forgets once in this number of steps; 0: never
	Step           int   // on average, a clock is wrong after a node's restart once in this number of restarts; 0: never
	Lose, Repeat   int   // of a hundred messages, how many are lost or late, and how many are repeated
	Without        Rule
}

// Result is the result of a run.
type Result struct {
	Grants, Forgot, Waits, Wrong int
	Together, Backward, Left     int // numbers of broken invariants: alone, forward, clean
}

// message is a message on its way to a node or back.
type message struct {
	kind         kind
	node, client int
	token        int
	hint         int64 // the time by the client
	minted       int64
	fence        int64
	tombstone    bool
	isReply, yes bool
	id           int // the identity of the server that answers
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
	nodes   []*node
	clients []client
	mail    []message
	tokens  int
	ids     int
	highest int64 // the largest fence of all grants so far
}

func newWorld(s Scenario, seed uint64) *world {
	w := &world{Scenario: s, rng: rand.New(rand.NewPCG(seed, 1)), now: 1_000_000, nodes: make([]*node, s.Nodes), clients: make([]client, s.Clients)}
	for i := range w.nodes {
		w.ids++
		w.nodes[i] = new(node)
		w.nodes[i].forget(w.ids)
		w.nodes[i].enroll(w, s.TTL)
		w.nodes[i].counter = w.now + w.rng.Int64N(s.Ahead+1)
	}
	for i := range w.clients {
		w.clients[i] = client{world: w, index: i, ttl: s.TTL}
	}
	return w
}

// Run makes the given number of random steps of the scenario s.
func Run(s Scenario, seed uint64, steps int) Result {
	w := newWorld(s, seed)
	for range steps {
		w.step()
	}
	return w.Result
}

// need returns how many nodes must vote.
func (w *world) need() int {
	if w.Without == Majority {
		return w.Nodes / 2
	}
	return w.Nodes/2 + 1
}

// step makes one random step.
func (w *world) step() {
	w.now += w.rng.Int64N(3)
	n := w.nodes[w.rng.IntN(w.Nodes)]
	if w.Forget > 0 && w.rng.IntN(w.Forget) == 0 {
		w.forget(n)
	}
	if n.offset != 0 && w.rng.IntN(200) == 0 {
		n.offset = 0 // a time service sets the clock right
	}
	if len(w.mail) == 0 || w.rng.IntN(4) == 0 {
		w.clients[w.rng.IntN(w.Clients)].act()
		return
	}
	i := w.rng.IntN(len(w.mail))
	m := w.mail[i]
	if m.kind == voting && !m.isReply || w.rng.IntN(100) >= w.Repeat { // otherwise the message stays in w.mail, and may arrive again
		w.mail[i] = w.mail[len(w.mail)-1]
		w.mail = w.mail[:len(w.mail)-1]
	}
	if w.rng.IntN(100) >= w.Lose {
		w.deliver(m)
	}
}

// forget restarts a node: without its data, or with an older copy of its data. Its clock may be
// wrong after the restart.
func (w *world) forget(n *node) {
	w.Forgot++
	old := n.marker
	w.ids++
	n.forget(w.ids)
	if w.rng.IntN(2) == 0 {
		n.marker = old
	}
	if w.Step > 0 && w.rng.IntN(w.Step) == 0 {
		w.Wrong++
		n.offset = (w.rng.Int64N(2)*2 - 1) * w.Wait
	}
}

// deliver brings a message to its node, or a reply to its client.
func (w *world) deliver(m message) {
	if m.isReply {
		w.clients[m.client].onReply(m)
		return
	}
	n := w.nodes[m.node]
	switch m.kind {
	case voting:
		m, m.yes = n.vote(w, m)
	case confirming:
		m.yes = n.confirm(w, m)
	case releasing:
		n.release(m)
		return
	}
	m.isReply, m.id = true, n.id
	w.mail = append(w.mail, m)
}

// granted checks the invariants for the lease that the client c has just got.
func (w *world) granted(c *client) {
	w.Grants++
	if c.fence <= c.fenceBefore {
		w.Backward++
	}
	w.highest = max(w.highest, c.fence)
	for i := range w.clients {
		if other := &w.clients[i]; other != c && other.holds() {
			w.Together++
		}
	}
}
