package quorum

// node is one server.
type node struct {
	counter int64
	offset  int64 // how far its clock is ahead
	out     int64 // the node does not vote before this time

	token   int // 0: free
	minted  int64
	fence   int64
	block   int64
	until   int64
	tenancy int // how many owners the node's vote has had
}

// expire frees the vote if its time is over.
func (n *node) expire(now int64) (expired bool) {
	if n.token != 0 && now >= n.until {
		n.token = 0
		return true
	}
	return false
}

// forget removes all data of the node.
func (n *node) forget(now int64, s *Scenario) {
	*n = node{offset: n.offset, tenancy: n.tenancy, out: now}
	if s.Without != Gate {
		n.out = now + s.Gate
	}
}

// vote does what vote.lua does.
func (n *node) vote(now int64, s *Scenario, m message) (answer message, ok bool) {
	if now < n.out {
		return m, false
	}
	if n.token != m.token && n.token != 0 {
		return m, false
	}
	if n.token == 0 {
		clock := now + n.offset
		hint := min(m.hint, clock+s.Skew)
		v := n.counter + 1
		if s.Without != Clock {
			v = max(v, hint)
			if clock > hint+s.Skew {
				v = max(v, clock)
			}
		}
		block := m.block
		if v+block-1 > clock+s.Skew {
			block = 1
		}
		n.tenancy++
		n.token, n.minted, n.fence, n.block, n.counter = m.token, v, v, block, v+block-1
		n.until = now + s.TTL
	}
	n.until = max(n.until, now+s.TTL)
	m.minted, m.fence, m.block, m.tenancy = n.minted, n.fence, n.block, n.tenancy
	return m, true
}

// confirm does what confirm.lua does.
func (n *node) confirm(s *Scenario, m message) bool {
	last := m.fence + m.block - 1
	if s.Without == Block {
		last = m.fence
	}
	switch {
	case s.Without == Owner:
		n.counter = max(n.counter, last)
		return true
	case n.token != m.token, n.minted != m.minted && s.Without != Pin:
		return false
	}
	n.counter, n.fence = max(n.counter, last), m.fence
	return true
}

// release does what release.lua does, but leaves no tombstone. So a late repetition of an acquire
// may take the vote again, but no client uses such a vote.
func (n *node) release(m message) {
	if n.token == m.token {
		n.token = 0
	}
}
