package locker

import "strconv"

// appeal is what one round of an acquire asks of the nodes. The texts are made once for all nodes that are sent the same: mostly
// that is each of them.
type appeal struct {
	claim        Claim
	slot         uint16
	hint, ticket uint64

	marker, channel string // what nodes may be told differently, as it stands in call
	call            *call  // which is not sent itself: nodes get copies
}

func (q *quorum) appeal(c Claim, hint, ticket uint64) *appeal {
	a := &appeal{claim: c, slot: slot(tagOf(c.Key)), hint: hint, ticket: ticket}
	n := q.nodes[0]
	m := n.memberAt(a.slot)
	a.marker, a.channel, a.call = m.marker, n.channelOf(&a.claim), n.asking(a, m)
	return a
}

// to is what node n is sent.
func (a *appeal) to(n *node, m *member) call {
	if m.marker == a.marker && n.channelOf(&a.claim) == a.channel {
		return a.call.again()
	}
	return *n.asking(a, m)
}

// asking is quorum_acquire.lua as the node is sent it.
func (n *node) asking(a *appeal, m *member) *call {
	if n.quorum.readers {
		return n.askingReader(a, m)
	}
	c := &a.claim
	block := max(c.Block, 1)
	return quorumAcquireScript.call(
		[]string{c.Key, queueOf(c.Key), wakeOf(c.Key), counterOf(c.Key), tombstoneOf(c.Key, c.Owner), doneOf(c.Key), m.marker},
		c.Owner, millis(c.TTL), int64(block), asksOnce(*c), c.Metadata, n.inboxOf(c),
		strconv.FormatUint(a.hint, 10), n.quorum.skew.Microseconds(), strconv.FormatUint(a.ticket, 10),
		strconv.FormatUint(a.hint+uint64(block)-1, 10)) //nolint:gosec // ≥ 1
}
