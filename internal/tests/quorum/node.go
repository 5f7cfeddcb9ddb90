package quorum

// node is one server.
type node struct {
	id      int   // the identity of its data
	offset  int64 // how far its clock is ahead of true time
	marker  marker
	counter int64

	token  int // 0: free
	minted int64
	fence  int64
	endsAt int64        // by the node's clock
	undone map[int]bool // the tombstones

	released map[int]bool // the tokens whose release the node has executed
}

// marker is what a node knows about its right to vote.
type marker struct {
	id    int   // 0: there is no marker
	since int64 // since when the node votes, by its clock
	idle  bool  // the wait has not begun
	ttl   int64
	nodes int
}

// forget removes all data of the node. The server has another identity then.
func (n *node) forget(id int) {
	*n = node{id: id, offset: n.offset, undone: make(map[int]bool), released: make(map[int]bool)}
}

// enroll declares that the node has forgotten nothing.
func (n *node) enroll(w *world, ttl int64) { n.marker = marker{id: n.id, ttl: ttl, nodes: w.Nodes} }

// votes reports whether the node votes for a client with these settings, as votes.lua does.
func (n *node) votes(w *world, c *client) bool {
	m := n.marker
	own := m.id == n.id || m.id != 0 && w.Without == Identity
	return own && !m.idle && w.now+n.offset >= m.since && m.ttl == c.ttl && m.nodes == w.Nodes
}

// vote runs the request m for a vote, as vote.lua does. It returns the answer, and whether the node
// has voted.
func (n *node) vote(w *world, m message) (answer message, ok bool) {
	c, clock := &w.clients[m.client], w.now+n.offset
	if !n.votes(w, c) {
		other := n.marker.id != 0 && n.marker.ttl != c.ttl
		waits := n.marker.id == n.id && !n.marker.idle
		near := w.Without == Window || clock >= m.hint-w.Skew && clock <= m.hint+w.Skew
		if !other && !waits && near {
			w.Waits++
			n.marker = marker{id: n.id, since: clock + w.wait(c.ttl), ttl: c.ttl, nodes: w.Nodes}
		}
		return m, false
	}
	if n.undone[m.token] {
		return m, false
	}
	if n.token != 0 && clock >= n.endsAt {
		n.token = 0
	}
	if n.token != m.token && n.token != 0 {
		return m, false
	}
	life := c.ttl + 2*w.Skew
	if n.released[m.token] {
		w.Left++
	}
	if n.token == 0 {
		v := max(n.counter+1, min(m.hint, clock+w.Skew))
		if clock > m.hint+w.Skew {
			v = max(v, clock)
		}
		n.token, n.minted, n.fence, n.counter, n.endsAt = m.token, v, v, v, clock+life
	}
	n.endsAt = max(n.endsAt, clock+life)
	m.minted, m.fence = n.minted, n.fence
	return m, true
}

// wait returns how long a node waits that may have forgotten leases of at most ttl.
func (w *world) wait(ttl int64) int64 {
	if w.Without == Quarantine {
		return 0
	}
	return max(w.Wait, ttl+4*w.Skew)
}

// confirm runs the confirmation m, as confirm.lua does. It reports whether the confirmation counts.
func (n *node) confirm(w *world, m message) bool {
	if !n.votes(w, &w.clients[m.client]) || n.token != m.token || n.minted != m.minted || m.fence < n.fence || w.now+n.offset >= n.endsAt {
		return false
	}
	n.counter, n.fence = max(n.counter, m.fence), m.fence
	return true
}

// release runs the release m, as release.lua does.
func (n *node) release(m message) {
	if n.token == m.token {
		n.token = 0
	}
	n.released[m.token] = true
	if m.tombstone {
		n.undone[m.token] = true
	}
}

// expel runs the change that a client makes at a node whose clock it has found wrong: the marker
// says that the wait has not begun.
func (n *node) expel() {
	if n.marker.id == n.id {
		n.marker.idle = true
	}
}
