package readers

import "github.com/latchkit/latchkit/internal/store"

// releaseArgs has the arguments of a release.
type releaseArgs struct {
	undo     bool
	keep     int  // for how long a writer's release keeps the key; 0: it does not
	setsDone bool // the release sets the mark that the work is done
}

func (m *model) release(c claim, g releaseArgs) answer {
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
	if g.setsDone {
		m.doneUntil = m.now + doneLife
		m.dismiss()
	}
	switch {
	case reads:
		m.leavePhase(c, g)
	case g.keep > 0:
		m.lease = &lease{kind: kept, fence: m.lease.fence, block: 1, ends: m.now + g.keep}
	default:
		m.free()
		if c.plain {
			m.handToNext("")
		} else {
			m.serve(claim{}, !m.omits(ReadersAfterWriter))
		}
	}
	return answer{State: store.Released}
}

// giveUp runs the release of an owner that holds nothing: it removes the owner from the queue.
func (m *model) giveUp(c claim, g releaseArgs) answer {
	revoked := m.revoked(c)
	if n, ok := m.note(c.owner); g.undo && (!ok || !n.revoked) {
		m.notes[c.owner] = note{ends: m.now + noteLife}
	}
	left := c.queue && m.leave(c.owner)
	switch {
	case m.lease == nil && !m.omits(GiveUpHands):
		if c.plain {
			m.handToNext("")
		} else {
			m.serve(claim{}, false)
		}
	case left && !c.plain && m.lease != nil && m.lease.kind == phase && !m.omits(GiveUpAdmits) && m.isOpen():
		m.admit("")
	}
	switch {
	case revoked:
		return answer{State: store.Revoked}
	case g.setsDone && m.doneUntil > m.now:
		return answer{State: store.Done}
	}
	return answer{State: store.NotOurs}
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
	if l.kind == phase && m.omits(BreakAll) {
		return answer{State: store.Released}
	}
	m.free()
	m.serve(claim{}, l.kind != phase)
	return answer{State: store.Released}
}
