package lockertest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// reader is one owner's part of a phase.
type reader struct {
	inbox string // "": the reader receives no events
	ends  time.Time
}

// phaseFor returns the lease of c's key, and whether c's owner reads in its phase. The caller holds
// m.mu, as for all methods below.
func (m *Memory) phaseFor(c store.Claim) (l lease, phaseFor bool) {
	l, held := m.lease(c.Key)
	if !held {
		return l, false
	}
	r, there := l.readers[c.Owner]
	return l, there && m.now().Before(r.ends)
}

// tryRead makes c a reader, if c may enter, and returns the grant. If c is a reader already,
// tryRead lengthens its part of the phase. If c may not enter, the result ok is false.
func (m *Memory) tryRead(c store.Claim) (g store.Grant, ok bool) {
	l, held := m.lease(c.Key)
	_, reads := m.phaseFor(c)
	switch {
	case c.Mode != locker.Shared:
		return g, false
	case !held: // c becomes the first reader
		m.openPhase(c.Key, nil, "")
		l = m.leases[c.Key]
		l.metadata = c.Metadata
		m.leases[c.Key] = l
	case l.readers == nil, !reads && m.blocked(c.Key):
		return g, false
	case !reads:
		m.admit(c.Key, c.Owner)
	}
	m.leave(c.Key, c.Owner)
	m.enter(c.Key, c.Owner, c.Inbox, c.TTL)
	g = m.grantOf(m.leases[c.Key])
	g.Writer = m.waiters(c.Key) > 0
	return g, true
}

// enter makes owner a reader of key's phase for at least ttl from now. The phase lasts at least
// until the end of this reader's part.
func (m *Memory) enter(key, owner, inbox string, ttl time.Duration) {
	l := m.leases[key]
	r := l.readers[owner]
	r.inbox = inbox
	if ends := m.now().Add(ttl); ends.After(r.ends) {
		r.ends = ends
	}
	l.readers[owner] = r
	m.leases[key] = l
	m.lengthen(key, l, ttl)
}

// lengthenReader makes the part of the reader c in the phase l last at least c.TTL from now.
func (m *Memory) lengthenReader(c store.Claim, l lease) store.Grant {
	m.enter(c.Key, c.Owner, l.readers[c.Owner].inbox, c.TTL)
	g := m.grantOf(l)
	g.Writer = m.waiters(c.Key) > 0
	return g
}

// openPhase begins a phase of key for the waiting readers. The asker is not notified.
func (m *Memory) openPhase(key string, readers []waiter, asker string) {
	l := lease{grantedAt: m.now(), ends: m.now(), readers: make(map[string]reader)}
	l.fence, l.block = m.mint(1)
	if len(readers) > 0 {
		l.metadata = readers[0].metadata
	}
	m.leases[key] = l
	longest := m.letIn(key, readers, asker)
	if len(readers) > 0 {
		m.notifyNext(key, "", longest)
	}
}

// letIn takes readers from the queue into the phase and notifies them. It does not notify the
// asker, because the asker gets an answer.
func (m *Memory) letIn(key string, readers []waiter, asker string) (longest time.Duration) {
	for _, w := range readers {
		m.leave(key, w.owner)
		m.enter(key, w.owner, w.inbox, w.hand)
		longest = max(longest, w.hand)
	}
	l := m.leases[key]
	for _, w := range readers {
		if w.owner != asker {
			m.publish(w.inbox, store.Event{
				Kind: store.EventGranted, Key: key, Owner: w.owner, Fence: l.fence, FenceCount: 1, HandoffTTL: w.hand, At: m.clock(),
				Writer: m.waiters(key) > 0, ReleasedBy: m.releaser,
			})
		}
	}
	return longest
}

// readersIn returns the live readers in the queue. Dead readers leave the queue.
func (m *Memory) readersIn(key, asker string) (readers []waiter) {
	for _, w := range m.living(key, asker) {
		if w.mode == locker.Shared {
			readers = append(readers, w)
		}
	}
	return readers
}

// blocked reports whether a live writer waits for key.
func (m *Memory) blocked(key string) bool {
	return slices.ContainsFunc(m.living(key, ""), func(w waiter) bool { return w.mode == locker.Exclusive })
}

// living returns the live waiters up to the first live writer, and the live readers behind this
// writer. It removes the dead waiters that it finds from the queue. The asker counts as live, even
// if its own entry is removed together with another entry of its process.
func (m *Memory) living(key, asker string) (living []waiter) {
	writer := false
	for _, w := range slices.Clone(m.queue(key)) {
		switch {
		case indexOf(m.queue(key), w.owner) < 0: // w was removed together with another entry of its process
		case writer && w.mode == locker.Exclusive: // a writer behind a live writer is checked when its turn has come
		case m.isDead(w, asker):
			m.drop(key, w)
		default:
			living = append(living, w)
			writer = writer || w.mode == locker.Exclusive
		}
	}
	return living
}

// admit lets the waiting readers of key into the phase unless a writer waits.
func (m *Memory) admit(key, asker string) {
	if len(m.queue(key)) > 0 && !m.blocked(key) {
		m.letIn(key, m.readersIn(key, asker), asker)
	}
}

// announce notifies the readers of l, the lease of key, that a writer waits.
func (m *Memory) announce(key string, l lease) {
	for owner, r := range l.readers {
		m.publish(r.inbox, store.Event{Kind: store.EventWriter, Key: key, Owner: owner})
	}
}

// leavePhase releases the reader c of the phase l. The last reader frees the key.
func (m *Memory) leavePhase(c store.Claim, l lease) store.Grant {
	defer m.setReleaser(c)()
	if c.Complete && c.OnceFor > 0 {
		m.doneMarks[c.Key] = m.now().Add(c.OnceFor)
		m.dismiss(c.Key)
	}
	delete(l.readers, c.Owner)
	l.ends = m.now()
	for owner, r := range l.readers {
		if !m.now().Before(r.ends) {
			delete(l.readers, owner)
		} else if r.ends.After(l.ends) {
			l.ends = r.ends
		}
	}
	m.leases[c.Key] = l
	switch {
	case len(l.readers) == 0:
		delete(m.leases, c.Key)
	case c.Complete && c.OnceFor > 0: // the work is done, so the waiters ahead of the waiting readers have left the queue
		m.admit(c.Key, "")
	}
	m.serveQueue(c.Key, locker.Exclusive)
	return store.Grant{State: store.Released, At: m.clock()}
}

// readersOf returns the readers of l whose time is not over, in the order in which they run out.
func (m *Memory) readersOf(l lease) (all []store.Reader) {
	processes := make(map[string]int)
	for _, owner := range slices.Sorted(maps.Keys(l.readers)) {
		r := l.readers[owner]
		if !m.now().Before(r.ends) {
			continue
		}
		if r.inbox != "" && processes[r.inbox] == 0 {
			processes[r.inbox] = len(processes) + 1
		}
		all = append(all, store.Reader{Left: r.ends.Sub(m.now()), Process: processes[r.inbox]})
	}
	slices.SortStableFunc(all, func(a, b store.Reader) int { return cmp.Compare(a.Left, b.Left) })
	return all
}
