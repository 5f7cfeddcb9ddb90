package readers

import (
	"slices"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// This file has the order in which owners get the key. After a writer, all waiting readers enter
// together. After the last reader, the first writer gets the key. While a writer waits, no reader
// enters. So during a phase the first waiter is a writer.

// enter makes c a reader of the phase for at least ttl. If the server has evicted the readers
// of the phase, enter also adds an unknown reader until the end of the lease, because an
// evicted reader may still hold the key.
func (m *model) enter(c claim, ttl int) {
	l := m.lease
	if len(l.parts) == 0 && l.ends > m.now && !m.omits(EvictedReaders) {
		l.parts[""] = &part{process: noInbox, ends: l.ends, count: 1}
	}
	p := l.parts[c.owner]
	if p == nil {
		p = &part{process: c.process}
		l.parts[c.owner] = p
	}
	if p.ends = max(p.ends, m.now+ttl); p.count == 0 || m.omits(EntryPerToken) {
		p.count++
	}
	m.lengthen(ttl)
}

// open begins a phase with the given readers, which have waited.
func (m *model) open(readers []claim) {
	m.lease = &lease{kind: phase, fence: m.mint(), block: 1, ends: m.now, parts: make(map[string]*part)}
	if m.omits(NewPhase) {
		m.lease.parts = m.stale
		m.stale = make(map[string]*part)
	}
	m.letIn(readers, "")
}

// letIn lets the given readers enter the phase. Each reader gets a message. Only the reader
// caller, which makes this call, gets the grant by the answer.
func (m *model) letIn(readers []claim, caller string) {
	for _, c := range readers {
		m.leave(c.owner)
		m.enter(c, c.hand)
	}
	for _, c := range readers {
		if c.owner != caller {
			m.send(message{process: c.process, kind: store.EventGranted, owner: c.owner, fence: m.lease.fence, writer: m.writerWaits()})
		}
	}
}

// admit lets all waiting readers enter the present phase. The owner caller makes this call.
func (m *model) admit(caller string) {
	var readers []claim
	for _, c := range m.alive(caller) {
		if c.mode == locker.Shared {
			readers = append(readers, c)
		}
	}
	m.letIn(readers, caller)
}

// isOpen reports whether a reader may enter now: the key has a phase, and no living writer waits.
func (m *model) isOpen() bool {
	return m.lease != nil && m.lease.kind == phase &&
		!slices.ContainsFunc(m.alive(""), func(c claim) bool { return c.mode == locker.Exclusive })
}

// leavePhase runs the release of the reader c.
func (m *model) leavePhase(c claim, g releaseArgs) {
	l := m.lease
	if p := l.parts[c.owner]; p.count > 1 {
		p.count--
	} else {
		delete(l.parts, c.owner)
	}
	last := m.now
	for owner, p := range l.parts {
		if p.ends <= m.now && !m.omits(OwnExpiry) && !m.omits(NoRevival) {
			delete(l.parts, owner)
		}
		last = max(last, p.ends)
	}
	switch {
	case last > m.now && m.omits(LastReader):
	case last > m.now:
		if l.ends = last; g.setsDone && m.isOpen() {
			m.admit("")
		}
	default:
		m.free()
		m.serve(claim{}, m.omits(WriterAfterReaders))
	}
}

// alive returns, in the order of the queue, the living waiters up to the first writer, and the
// living readers behind this writer. A waiter leaves the queue if its process is dead, or if it
// did not confirm a grant by message. A writer behind the first writer is checked only when its
// turn comes. The owner caller makes this call, so it is alive. But the caller loses its place if
// a dead waiter of its process stands before it, because all later waiters of this process are
// dropped together.
func (m *model) alive(caller string) []claim {
	var alive []claim
	dead := make(map[int]bool)
	for _, p := range slices.Clone(m.queue) {
		if p.mode == locker.Exclusive && slices.ContainsFunc(alive, func(c claim) bool { return c.mode == locker.Exclusive }) {
			continue
		}
		known := true
		if p.process != noInbox {
			_, known = dead[p.process]
		}
		if p.owner != caller && (!known || p.process == noInbox) {
			isDead := p.handed || m.dead[p.process] && (!m.omits(DeadWriters) || p.mode == locker.Shared)
			if isDead {
				m.drop(p, alive)
			}
			if p.process != noInbox {
				dead[p.process] = isDead
			} else if isDead {
				continue
			}
		}
		if !dead[p.process] {
			alive = append(alive, p.claim)
		}
	}
	return alive
}

// serve gives the free key to the next waiters. The parameter caller makes this call. If it is
// a writer and the next owner, it gets the key by the answer, without a message.
func (m *model) serve(caller claim, afterWriter bool) {
	if m.lease != nil {
		return
	}
	if caller.plain {
		m.handToNext(caller.owner)
		return
	}
	alive := m.alive(caller.owner)
	if len(alive) == 0 {
		return
	}
	var readers []claim
	for _, c := range alive {
		if c.mode == locker.Shared {
			readers = append(readers, c)
		}
	}
	if len(readers) > 0 && (afterWriter || alive[0].mode == locker.Shared) {
		if m.omits(Together) {
			readers = readers[:1]
		}
		m.open(nil)
		m.letIn(readers, caller.owner)
		return
	}
	writer := alive[slices.IndexFunc(alive, func(c claim) bool { return c.mode == locker.Exclusive })]
	if writer.owner == caller.owner {
		m.leave(writer.owner)
		return
	}
	m.grantByMessage(writer)
}

// handToNext gives the free key to the first living waiter alone, as a Locker without readers
// does. If this waiter is the owner caller, it leaves the queue, and gets the key by the answer.
func (m *model) handToNext(caller string) {
	for m.lease == nil && len(m.queue) > 0 {
		switch first := m.queue[0]; {
		case first.owner == caller:
			m.leave(caller)
			return
		case first.handed, m.dead[first.process]:
			m.drop(first, nil)
		default:
			m.grantByMessage(first.claim)
		}
	}
}

// grantByMessage gives the key to the waiter c by message. The entry of the waiter stays in the
// queue until the waiter confirms the grant.
func (m *model) grantByMessage(c claim) {
	if i := m.indexOf(c.owner); m.omits(KeepHanded) {
		m.leave(c.owner)
	} else {
		m.queue = slices.Insert(slices.Delete(m.queue, i, i+1), 0, place{c, true})
	}
	m.grantTo(c, c.hand)
	m.send(message{process: c.process, kind: store.EventGranted, owner: c.owner, fence: m.lease.fence})
}

// announce notifies the readers that a writer waits.
func (m *model) announce() {
	if m.omits(Announce) {
		return
	}
	for owner, p := range m.lease.parts {
		if p.ends > m.now {
			m.send(message{process: p.process, kind: store.EventWriter, owner: owner})
		}
	}
}

func (m *model) send(t message) {
	if t.process != noInbox && !m.dead[t.process] {
		m.messages = append(m.messages, t)
	}
}

// takeMessages returns the messages since its last call.
func (m *model) takeMessages([]message) []message {
	sent := m.messages
	m.messages = nil
	return sent
}

// matches reports whether the messages w and m have the same process, the same kind of event
// and the same owner.
func (w message) matches(m message) bool {
	return m.kind == w.kind && m.owner == w.owner && m.process == w.process
}

// join puts c at the end of the queue. If c is already in the queue because it did not confirm a
// grant by message, it keeps its entry, and may be handed the key again.
func (m *model) join(c claim) {
	if i := m.indexOf(c.owner); i >= 0 {
		m.queue[i].handed = false
	} else {
		m.queue = append(m.queue, place{claim: c})
	}
	m.queueEnds = m.now + queueLife
}

// leave removes an owner from the queue. It reports whether the owner was in the queue.
func (m *model) leave(owner string) bool {
	i := m.indexOf(owner)
	if i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
	}
	return i >= 0
}

// confirm removes the queue entry of the owner that was handed the key, because a call of this
// owner shows that it is alive.
func (m *model) confirm() {
	m.queue = slices.DeleteFunc(m.queue, func(p place) bool { return p.handed })
}

// drop removes the waiter absent, which does not react, and all other waiters of its process
// except those that are known to be alive.
func (m *model) drop(absent place, alive []claim) {
	m.queue = slices.DeleteFunc(m.queue, func(p place) bool {
		return (p.owner == absent.owner || absent.process != noInbox && p.process == absent.process) &&
			!slices.ContainsFunc(alive, func(c claim) bool { return c.owner == p.owner })
	})
}

// dismiss removes those waiters whose claims have once set, and notifies them that the work is
// done.
func (m *model) dismiss() {
	m.queue = slices.DeleteFunc(m.queue, func(p place) bool {
		if p.once {
			m.send(message{process: p.process, kind: store.EventDone, owner: p.owner})
		}
		return p.once
	})
}

// placeOf returns the place of an owner in the queue, counted from 1. It does not count a waiter
// that was handed the key.
func (m *model) placeOf(owner string) int {
	n := 1
	for _, p := range m.queue {
		if p.owner == owner {
			break
		}
		if !p.handed {
			n++
		}
	}
	return n
}

func (m *model) waiters() int {
	n := 0
	for _, p := range m.queue {
		if !p.handed {
			n++
		}
	}
	return n
}

// writerWaits reports whether the answers to readers must report a waiting writer. During a phase,
// the first waiter is always a writer, so it is enough that the queue is not empty.
func (m *model) writerWaits() bool { return len(m.queue) > 0 && !m.omits(SayWriter) }
