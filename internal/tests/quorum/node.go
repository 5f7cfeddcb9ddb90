package quorum

// node is one server.
type node struct {
	counter   int64
	offset    int64 // how far the node's clock is ahead of true time
	votesFrom int64 // the node does not vote before this time

	token   int // 0: free
	minted  int64
	fence   int64
	block   int64
	endsAt  int64
	tenancy int // how many owners the node's vote has had
}

// expire frees the vote of the node if the vote has ended at the time now. It reports whether it
// has freed the vote.
func (n *node) expire(now int64) (expired bool) {
	if n.token != 0 && now >= n.endsAt {
		n.token = 0
		return true
	}
	return false
}

// forget removes all data of the node, as a restart without persistence does.
func (n *node) forget(now int64, s *Scenario) {
	*n = node{offset: n.offset, tenancy: n.tenancy, votesFrom: now}
	if s.Without != Gate {
		n.votesFrom = now + s.Gate
	}
}

// vote runs the request m for a vote, as vote.lua does. It returns the answer, and whether the
// node has voted.
func (n *node) vote(now int64, s *Scenario, m message) (answer message, ok bool) {
	if now < n.votesFrom {
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
		n.endsAt = now + s.TTL
	}
	n.endsAt = max(n.endsAt, now+s.TTL)
	m.minted, m.fence, m.block, m.tenancy = n.minted, n.fence, n.block, n.tenancy
	return m, true
}

// confirm runs the confirmation m, as confirm.lua does. It reports whether the confirmation
// counts.
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

// release runs the release m, as release.lua does, but leaves no tombstone. So an acquire that
// is repeated late may get the node's vote again, but then its client does not use the vote.
func (n *node) release(m message) {
	if n.token == m.token {
		n.token = 0
	}
}
