package quorum

// client acquires the key, holds it for a while, and releases it, again and again. Sometimes it
// dies before the release. Then it continues as a new client, and its old votes stay at the
// nodes.
type client struct {
	world  *world
	index  int
	offset int64 // how far the client's clock is ahead of true time

	phase       phase
	token       int
	askedAt     int64 // when the client asked for the first vote
	fenceBefore int64 // the largest fence of all grants when the client sent its first request
	hint        int64
	votes       []vote

	fence, block int64
	deadline     int64
}

type phase uint8

const (
	idle phase = iota
	asking
	agreeing
	holding
)

// vote is the vote that one node has given to the client.
type vote struct {
	granted bool
	counts  bool // the node has voted for the client's fence, or has confirmed it
	minted  int64
	fence   int64
	block   int64
	tenancy int
}

func (c *client) holds() bool { return c.phase == holding && c.world.now < c.deadline }

// act makes one step that the client takes by itself, without a message: it asks, repeats a
// call, gives up, or dies.
func (c *client) act() {
	w := c.world
	chance := w.rng.IntN(1000)
	switch {
	case c.phase != idle && chance < 5: // the client dies
		c.phase = idle
	case c.phase == idle:
		c.begin()
	case c.phase == holding && (chance < 200 || w.now >= c.deadline):
		c.giveUp()
	case c.phase != holding && chance < 60:
		c.giveUp()
	case c.phase != holding && chance < 160: // the client repeats a call
		c.ask(w.rng.IntN(w.Nodes))
	}
}

func (c *client) begin() {
	w := c.world
	w.tokens++
	c.phase, c.token, c.askedAt, c.fenceBefore = asking, w.tokens, w.now, w.highest
	c.hint = w.now + c.offset
	c.votes = make([]vote, w.Nodes)
	for i := range w.nodes {
		c.ask(i)
	}
}

func (c *client) send(m message) {
	m.client, m.token = c.index, c.token
	c.world.mail = append(c.world.mail, m)
}

func (c *client) ask(node int) {
	c.send(message{kind: voting, node: node, hint: c.hint, block: c.world.Block})
}

func (c *client) giveUp() {
	for i := range c.votes {
		c.send(message{kind: releasing, node: i})
	}
	c.phase = idle
}

// onReply handles m, the reply of a node.
func (c *client) onReply(m message) {
	if m.token != c.token || !m.yes {
		return
	}
	v := &c.votes[m.node]
	switch {
	case m.kind == voting && c.phase == asking:
		if !v.granted {
			*v = vote{granted: true, minted: m.minted, fence: m.fence, block: m.block, tenancy: m.tenancy}
		}
		c.tally()
	case m.kind == confirming && c.phase == agreeing && m.fence == c.fence:
		v.counts = true
		c.takeIfAgreed()
	}
}

// tally counts the votes. If enough nodes have voted, it chooses the fence: the fence of a
// majority, or else the largest fence.
func (c *client) tally() {
	w := c.world
	given, most := 0, int64(0)
	for _, v := range c.votes {
		if v.granted {
			given++
			most = max(most, v.fence)
		}
	}
	if given < w.need() {
		return
	}
	for _, candidate := range c.votes {
		if same := c.count(candidate.fence); candidate.granted && same >= w.need() {
			w.OneRound++
			c.propose(candidate.fence, true)
			c.takeIfAgreed()
			return
		}
	}
	c.propose(most, w.Without == Confirm)
	if w.Without == Confirm {
		for i := range c.votes {
			c.votes[i].counts = c.votes[i].granted
		}
	}
	c.takeIfAgreed()
}

func (c *client) count(fence int64) (n int) {
	for _, v := range c.votes {
		if v.granted && v.fence == fence {
			n++
		}
	}
	return n
}

// propose sets the fence of the lease, and its block: the shortest block among the votes, or,
// if onlySame is true, among the votes with this fence. It asks the nodes with other fences to
// confirm this fence.
func (c *client) propose(fence int64, onlySame bool) {
	c.phase, c.fence, c.block = agreeing, fence, c.world.Block
	for i := range c.votes {
		v := &c.votes[i]
		if v.counts = v.granted && v.fence == fence; v.granted && (v.counts || !onlySame) {
			c.block = min(c.block, v.block)
		}
	}
	for i, v := range c.votes {
		if v.granted && !v.counts && !onlySame {
			c.send(message{kind: confirming, node: i, minted: v.minted, fence: fence, block: c.block})
		}
	}
}

// takeIfAgreed takes the lease if enough nodes have confirmed the fence, and the lease has not
// expired yet.
func (c *client) takeIfAgreed() {
	w, standing := c.world, 0
	for _, v := range c.votes {
		if v.counts {
			standing++
		}
	}
	if standing < w.need() {
		return
	}
	since := c.askedAt
	if w.Without == Sent {
		since = w.now
	}
	if c.deadline = since + w.TTL - 1; w.now >= c.deadline {
		c.giveUp()
		return
	}
	c.phase = holding
	w.granted(c)
}
