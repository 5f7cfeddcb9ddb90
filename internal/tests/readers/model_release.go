package readers

import "github.com/latchkit/latchkit/locker/store"

// giving has the arguments of a release.
type giving struct {
	undo bool
	keep int
	done bool   // the release sets the done mark
	next *claim // the claim of the next owner, a writer that acquires in the same step
}

func (m *model) release(c claim, g giving) answer {
	holds, reads := m.holds(c.owner), m.reads(c.owner)
	if !holds && !reads {
		return m.giveUp(c, g)
	}
	if g.undo {
		m.notes[c.owner] = note{ends: m.now + noteLife}
	}
	if holds {
		m.confirm()
	}
	m.leave(c.owner)
	if g.done {
		m.done = m.now + doneLife
		m.dismiss()
	}
	a := answer{State: store.Released}
	switch {
	case reads:
		m.leavePhase(c, g)
	case g.keep > 0:
		m.lease = &lease{kind: kept, fence: m.lease.fence, block: 1, ends: m.now + g.keep}
	default:
		m.free()
		if c.plain {
			m.hand("")
		} else {
			m.serve(claim{}, !m.off(ReadersAfterWriter))
		}
		if g.next != nil {
			n := m.follow(*g.next)
			a.Next = &n
		}
	}
	return a
}

// follow is the acquire of the next writer, which is part of a release.
func (m *model) follow(c claim) answer {
	if _, undone := m.note(c.owner); undone {
		return answer{State: store.Undone}
	}
	if c.once && m.done > m.now {
		return answer{State: store.Done}
	}
	switch {
	case m.lease == nil:
		m.put(c, c.ttl)
		return m.granted()
	case m.holds(c.owner): // the next writer was in the queue already, and the release has just given it the key
		m.confirm()
		m.lengthen(c.ttl)
		return m.granted()
	}
	return m.busy(c)
}

// giveUp is the release of an owner that holds nothing.
func (m *model) giveUp(c claim, g giving) answer {
	revoked := m.revoked(c)
	if n, ok := m.note(c.owner); g.undo && (!ok || !n.revoked) {
		m.notes[c.owner] = note{ends: m.now + noteLife}
	}
	left := c.queue && m.leave(c.owner)
	switch {
	case m.lease == nil && !m.off(GiveUpHands):
		if c.plain {
			m.hand("")
		} else {
			m.serve(claim{}, false)
		}
	case left && !c.plain && m.lease != nil && m.lease.kind == phase && !m.off(GiveUpAdmits) && m.isOpen():
		m.admit("")
	}
	switch {
	case revoked:
		return answer{State: store.Revoked}
	case g.done && m.done > m.now:
		return answer{State: store.Done}
	}
	return answer{State: store.NotOurs}
}

// downgrade makes a writer the first reader of a phase. The fence of the phase is one of the
// fences in the writer's block.
func (m *model) downgrade(c claim, fence int) answer {
	switch {
	case m.holds(c.owner) && m.off(DowngradeEnds):
		m.confirm()
		m.free()
		m.serve(claim{}, true)
		return answer{State: store.Granted, Fence: fence, Writer: m.writerWaits()}
	case m.holds(c.owner):
		m.confirm()
		if m.off(DowngradeFence) {
			fence = m.mint()
		}
		m.lease = &lease{kind: phase, fence: fence, block: 1, ends: m.lease.ends, parts: map[string]*part{
			c.owner: {process: c.process, ends: m.lease.ends, count: 1},
		}}
		m.enter(c, c.ttl)
		if !m.off(DowngradeAdmits) {
			m.admit("")
		}
	case m.reads(c.owner) && m.lease.fence == fence:
		m.enter(c, c.ttl)
	default:
		return m.notOurs(c)
	}
	return answer{State: store.Granted, Fence: fence, Writer: m.writerWaits()}
}

// breakHolder revokes the lease of the holder with the given fence.
func (m *model) breakHolder(fence int) answer {
	l := m.lease
	if l == nil || l.kind == foreign || fence < l.fence || fence >= l.fence+l.block {
		return answer{State: store.NotOurs}
	}
	n := note{revoked: true, ends: m.now + max(l.ends-m.now, queueLife)}
	if l.kind == alone {
		m.notes[l.owner] = n
		m.confirm()
	}
	if l.kind == phase {
		m.notes[phaseNote(l.fence)] = n
	}
	if l.kind == phase && m.off(BreakAll) {
		return answer{State: store.Released}
	}
	m.free()
	m.serve(claim{}, l.kind != phase)
	return answer{State: store.Released}
}
