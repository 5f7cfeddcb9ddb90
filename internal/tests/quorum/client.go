package quorum

// client acquires the key, holds it for a while, and releases it, again and again. Sometimes it
// dies before the release, and continues as a new client. Its old votes stay at the nodes.
type client struct {
	world *world
	index int
	ttl   int64

	phase       phase
	token       int
	askedAt     int64
	fenceBefore int64 // the largest fence of all grants when the client sent its first request
	votes       []vote
	fence       int64
	deadline    int64
}

type phase uint8

const (
	idle phase = iota
	asking
	agreeing
	holding
)

// vote is what a client knows of one node's vote.
type vote struct {
	granted bool
	counts  bool // the node has voted for the client's fence, or has confirmed it
	open    bool // a request has no answer, so it may still arrive
	minted  int64
	fence   int64
	id      int // the server
}

func (c *client) holds() bool { return c.phase == holding && c.world.now < c.deadline }

// act makes one step that the client takes by itself, without a message.
func (c *client) act() {
	w := c.world
	chance := w.rng.IntN(1000)
	switch {
	case c.phase != idle && chance < 5: // the client dies
		c.phase = idle
	case c.phase == idle:
		c.begin()
	case c.phase == holding && (chance < 200 || w.now >= c.deadline), c.phase != holding && chance < 60:
		c.giveUp()
	}
}

func (c *client) begin() {
	w := c.world
	w.tokens++
	c.phase, c.token, c.askedAt, c.fenceBefore, c.votes = asking, w.tokens, w.now, w.highest, make([]vote, w.Nodes)
	for i := range w.nodes {
		c.votes[i].open = true
		c.send(message{kind: voting, node: i, hint: w.now})
	}
}

func (c *client) send(m message) {
	m.client, m.token = c.index, c.token
	c.world.mail = append(c.world.mail, m)
}

// giveUp releases the token. The release of a vote that is open leaves a tombstone.
func (c *client) giveUp() {
	for i, v := range c.votes {
		c.send(message{kind: releasing, node: i, tombstone: v.open && c.world.Without != Tombstone})
	}
	c.phase = idle
}

// onReply handles m, the reply of a node.
func (c *client) onReply(m message) {
	if m.token != c.token {
		return
	}
	v := &c.votes[m.node]
	if m.kind == voting {
		v.open = false
	}
	switch {
	case !m.yes:
	case m.kind == voting && c.phase == asking:
		*v = vote{granted: true, minted: m.minted, fence: m.fence, id: m.id}
		c.tally()
	case m.kind == confirming && c.phase == agreeing && m.fence == c.fence:
		v.counts = true
		c.takeIfAgreed()
	}
}

// count returns the number of servers whose votes cond chooses. Two answers of one server are one
// vote.
func (c *client) count(cond func(v vote) bool) int {
	servers := make(map[int]bool)
	for _, v := range c.votes {
		if v.granted && cond(v) {
			servers[v.id] = true
		}
	}
	return len(servers)
}

// tally counts the votes. When enough nodes have voted, the fence is the largest of them, and the
// other nodes must confirm it.
func (c *client) tally() {
	w := c.world
	if c.count(func(vote) bool { return true }) < w.need() {
		return
	}
	c.phase, c.fence = agreeing, 0
	for _, v := range c.votes {
		if v.granted {
			c.fence = max(c.fence, v.fence)
		}
	}
	for i := range c.votes {
		v := &c.votes[i]
		if v.counts = v.granted && (v.fence == c.fence || w.Without == Raise); v.granted && !v.counts {
			c.send(message{kind: confirming, node: i, minted: v.minted, fence: c.fence})
		}
	}
	c.takeIfAgreed()
}

// takeIfAgreed takes the lease if enough nodes have the fence, and the lease has not expired yet.
func (c *client) takeIfAgreed() {
	if c.count(func(v vote) bool { return v.counts }) < c.world.need() {
		return
	}
	if c.deadline = c.askedAt + c.ttl - 1; c.world.now >= c.deadline {
		c.giveUp()
		return
	}
	c.phase = holding
	c.world.granted(c)
}
