package readers

import (
	"slices"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// This file has the order in which owners get the key. After a writer, all waiting readers enter
// together. After the last reader, the first writer gets the key. While a writer waits, no reader
// enters. So during a phase the first waiter is a writer.

// enter makes c a reader for at least ttl. If the server has forgotten the readers of the phase,
// enter also adds an unknown reader, which stays until the lease ends.
func (m *model) enter(c claim, ttl int) {
	l := m.lease
	if len(l.parts) == 0 && l.ends > m.now && !m.off(EvictedReaders) {
		l.parts[""] = &part{process: noInbox, ends: l.ends, count: 1}
	}
	p := l.parts[c.owner]
	if p == nil {
		p = &part{process: c.process}
		l.parts[c.owner] = p
	}
	if p.ends = max(p.ends, m.now+ttl); p.count == 0 || m.off(EntryPerToken) {
		p.count++
	}
	m.lengthen(ttl)
}

// open begins a phase with the waiting readers.
func (m *model) open(readers []claim) {
	m.lease = &lease{kind: phase, fence: m.mint(), block: 1, ends: m.now, parts: make(map[string]*part)}
	if m.off(NewPhase) {
		m.lease.parts = m.stale
		m.stale = make(map[string]*part)
	}
	m.letIn(readers, "")
}

// letIn lets readers enter. It sends a message to each of these readers, except to the reader in
// the parameter asks, which makes the call and gets an answer.
func (m *model) letIn(readers []claim, asks string) {
	for _, c := range readers {
		m.leave(c.owner)
		m.enter(c, c.hand)
	}
	for _, c := range readers {
		if c.owner != asks {
			m.tell(message{process: c.process, kind: store.EventGranted, owner: c.owner, fence: m.lease.fence, writer: m.writerWaits()})
		}
	}
}

// admit lets all waiting readers enter the present phase.
func (m *model) admit(asks string) {
	var readers []claim
	for _, c := range m.alive(asks) {
		if c.mode == locker.Shared {
			readers = append(readers, c)
		}
	}
	m.letIn(readers, asks)
}

// isOpen reports whether a reader may enter. A reader may enter if there is a phase and no living
// writer waits.
func (m *model) isOpen() bool {
	return m.lease != nil && m.lease.kind == phase &&
		!slices.ContainsFunc(m.alive(""), func(c claim) bool { return c.mode == locker.Exclusive })
}

// leavePhase handles the release of a reader.
func (m *model) leavePhase(c claim, g giving) {
	l := m.lease
	if p := l.parts[c.owner]; p.count > 1 {
		p.count--
	} else {
		delete(l.parts, c.owner)
	}
	if g.keep > 0 && !m.off(Kept) {
		kept := "kept " + c.owner
		if before := l.parts[kept]; before == nil || before.ends < m.now+g.keep {
			l.parts[kept] = &part{process: noInbox, ends: m.now + g.keep, count: 1}
		}
	}
	last := m.now
	for owner, p := range l.parts {
		if p.ends <= m.now && !m.off(OwnExpiry) && !m.off(NoRevival) {
			delete(l.parts, owner)
		}
		last = max(last, p.ends)
	}
	switch {
	case last > m.now && m.off(LastReader):
	case last > m.now:
		if l.ends = last; g.done && m.isOpen() {
			m.admit("")
		}
	default:
		m.free()
		m.serve(claim{}, m.off(WriterAfterReaders))
	}
}

// alive returns, in order, the living waiters up to the first writer, and the living readers behind
// it. A writer behind another writer is checked only when its turn comes. A waiter leaves the queue
// if its process is gone, or if it did not confirm a grant by message. The owner in the parameter
// asks makes the call, so it is alive. But this owner may leave the queue together with the other
// waiters of its process.
func (m *model) alive(asks string) []claim {
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
		if p.owner != asks && (!known || p.process == noInbox) {
			isDead := p.handed || m.gone[p.process] && (!m.off(DeadWriters) || p.mode == locker.Shared)
			if isDead {
				m.drop(p)
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

// serve gives a free key to the next waiters. If it is the turn of the writer that makes this call,
// the writer gets the key with its answer, without a message.
func (m *model) serve(asks claim, afterWriter bool) {
	if m.lease != nil {
		return
	}
	if asks.plain {
		m.hand(asks.owner)
		return
	}
	alive := m.alive(asks.owner)
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
		if m.off(Together) {
			readers = readers[:1]
		}
		m.open(nil)
		m.letIn(readers, asks.owner)
		return
	}
	writer := alive[slices.IndexFunc(alive, func(c claim) bool { return c.mode == locker.Exclusive })]
	if writer.owner == asks.owner {
		m.leave(writer.owner)
		return
	}
	m.handOver(writer)
}

// hand gives the key to the next waiter, as a Locker without readers does. The first living waiter
// gets the key alone.
func (m *model) hand(asks string) {
	for m.lease == nil && len(m.queue) > 0 {
		switch first := m.queue[0]; {
		case first.owner == asks:
			m.leave(asks)
			return
		case first.handed, m.gone[first.process]:
			m.drop(first)
		default:
			m.handOver(first.claim)
		}
	}
}

// handOver gives the key to a waiter by message. The waiter's entry stays in the queue until its
// owner confirms the grant.
func (m *model) handOver(c claim) {
	if i := m.indexOf(c.owner); m.off(KeepHanded) {
		m.leave(c.owner)
	} else {
		m.queue = slices.Insert(slices.Delete(m.queue, i, i+1), 0, place{c, true})
	}
	m.put(c, c.hand)
	m.tell(message{process: c.process, kind: store.EventGranted, owner: c.owner, fence: m.lease.fence})
}

// announce notifies the readers that a writer waits.
func (m *model) announce() {
	if m.off(Announce) {
		return
	}
	for owner, p := range m.lease.parts {
		if p.ends > m.now {
			m.tell(message{process: p.process, kind: store.EventWriter, owner: owner})
		}
	}
}

func (m *model) tell(t message) {
	if t.process != noInbox && !m.gone[t.process] {
		m.sent = append(m.sent, t)
	}
}

// said returns the messages of the last step.
func (m *model) said([]message) []message {
	sent := m.sent
	m.sent = nil
	return sent
}

// answers reports whether the message m is about the same event as w.
func (w message) answers(m message) bool {
	return m.kind == w.kind && m.owner == w.owner && m.process == w.process
}

// join puts c at the end of the queue. An owner may have missed its turn because it did not confirm
// a grant by message. If this owner sends its request again before another caller has noticed the
// missed turn, the owner is the first again.
func (m *model) join(c claim) {
	if i := m.indexOf(c.owner); i >= 0 {
		m.queue[i].handed = false
	} else {
		m.queue = append(m.queue, place{claim: c})
	}
	m.queueEnds = m.now + queueLife
}

// leave removes an owner from the queue.
func (m *model) leave(owner string) bool {
	i := m.indexOf(owner)
	if i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
	}
	return i >= 0
}

// confirm removes the entry of the owner that was handed the key, because its call shows that it
// is alive.
func (m *model) confirm() {
	m.queue = slices.DeleteFunc(m.queue, func(p place) bool { return p.handed })
}

// drop removes a waiter, and all other waiters of its process.
func (m *model) drop(of place) {
	m.queue = slices.DeleteFunc(m.queue, func(p place) bool {
		return p.owner == of.owner || of.process != noInbox && p.process == of.process
	})
}

// dismiss notifies the waiters whose work is done.
func (m *model) dismiss() {
	m.queue = slices.DeleteFunc(m.queue, func(p place) bool {
		if p.once {
			m.tell(message{process: p.process, kind: store.EventDone, owner: p.owner})
		}
		return p.once
	})
}

// placeOf returns the owner's place in the queue: one more than the number of waiters before the
// owner.
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
func (m *model) writerWaits() bool { return len(m.queue) > 0 && !m.off(SayWriter) }
