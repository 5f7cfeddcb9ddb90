package lockertest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// permits are the held units of a key. A lease with permits has no owner, and its fence is the
// fence of the first permit that was granted since the key was free.
type permits struct {
	byOwner      map[string]permit // the permits by owner
	head         string            // the head of the queue, if units are free but too few for it
	headNotified time.Time         // when head was notified that the units are too few
}

// permit is one owner's units.
type permit struct {
	weight, limit   int
	fence           uint64
	block           int
	metadata        string
	inbox           string // "": the owner receives no events
	grantedAt, ends time.Time
	handed          bool // the permit was granted by message, and its owner has not confirmed it
	kept            bool
}

const (
	standsStill = 3 * time.Second // a head that has not asked for so long after an event counts as gone
	permitsLife = time.Minute     // how long the Memory remembers expired permits
)

// tooHeavy returns an error if the Weight of c is more than its Limit.
func tooHeavy(c store.Claim) error {
	if c.Limit > 0 && c.Weight > c.Limit {
		return &store.Refusal{Err: fmt.Errorf("%w: %d units of %d would never be free", locker.ErrUnsupported, c.Weight, c.Limit)}
	}
	return nil
}

// usage returns how many units are held, and the smallest Limit of their holders.
func (s *permits) usage() (usage, limit int) {
	if s == nil {
		return 0, 0
	}
	for _, p := range s.byOwner {
		usage += p.weight
		if limit == 0 || p.limit < limit {
			limit = p.limit
		}
	}
	return usage, limit
}

// earliest returns how long it takes until the next permit of s runs out. The caller holds m.mu, as
// for all methods below.
func (m *Memory) earliest(s *permits) time.Duration {
	var first time.Time
	for _, p := range s.byOwner {
		if first.IsZero() || p.ends.Before(first) {
			first = p.ends
		}
	}
	return max(first.Sub(m.now()), time.Millisecond)
}

// isHeldAlone reports whether one lease holds the whole key, without permits.
func (m *Memory) isHeldAlone(key string) bool {
	l, held := m.lease(key)
	return held && l.permits == nil
}

// fits reports whether limit leaves room for weight more units of key.
func (m *Memory) fits(key string, weight, limit int) bool {
	if m.isHeldAlone(key) {
		return false
	}
	used, smallest := m.leases[key].permits.usage()
	return used == 0 || used+weight <= min(limit, smallest)
}

// enterPermit gives the waiter w its units of key for ttl, and returns the permit. The parameter
// handed is true if the grant goes out by message.
func (m *Memory) enterPermit(key string, w waiter, ttl time.Duration, handed bool) permit {
	p := permit{
		weight: w.weight, limit: w.limit, metadata: w.metadata, inbox: w.inbox, grantedAt: m.now(), ends: m.now().Add(ttl), handed: handed,
	}
	p.fence, p.block = m.mint(w.block)
	m.putPermit(key, w.owner, p)
	return p
}

// putPermit stores p, the permit of owner for key.
func (m *Memory) putPermit(key, owner string, p permit) {
	l := m.leases[key]
	if l.permits == nil || len(l.permits.byOwner) == 0 {
		l = lease{fence: p.fence, grantedAt: p.grantedAt, permits: &permits{byOwner: make(map[string]permit)}}
	}
	l.permits.byOwner[owner] = p
	m.leases[key] = l
	m.adjustEnd(key)
}

// adjustEnd makes the lease of key last as long as the last permit.
func (m *Memory) adjustEnd(key string) {
	l := m.leases[key]
	if l.permits == nil {
		return
	}
	if len(l.permits.byOwner) == 0 {
		delete(m.leases, key)
		return
	}
	l.ends = time.Time{}
	for _, p := range l.permits.byOwner {
		if p.ends.After(l.ends) {
			l.ends = p.ends
		}
	}
	m.leases[key] = l
}

// takePermit removes the permit of owner from key, and returns it. It returns false if there is
// none.
func (m *Memory) takePermit(key, owner string) (p permit, ok bool) {
	s := m.leases[key].permits
	if s == nil {
		return p, false
	}
	if p, ok = s.byOwner[owner]; ok {
		delete(s.byOwner, owner)
	}
	return p, ok
}

// confirm makes the permit of c's owner last for at least c.TTL from now, and returns it. An owner
// that confirms its permit late still has the permit, unless reap has already taken it back. Then
// confirm returns false.
func (m *Memory) confirm(c store.Claim) (p permit, ok bool) {
	s := m.leases[c.Key].permits
	if s == nil {
		return p, false
	}
	if p, ok = s.byOwner[c.Owner]; !ok {
		return p, false
	}
	p.handed = false
	if ends := m.now().Add(c.TTL); ends.After(p.ends) {
		p.ends = ends
	}
	m.putPermit(c.Key, c.Owner, p)
	return p, true
}

// reap takes back the expired permits of key. If an expired permit was never confirmed, its process
// does not react. So this process loses its places in the queue too.
func (m *Memory) reap(key string) {
	l := m.leases[key]
	if l.permits == nil {
		return
	}
	for owner, p := range l.permits.byOwner {
		if m.now().Before(p.ends) {
			continue
		}
		delete(l.permits.byOwner, owner)
		if p.handed && p.inbox != "" {
			m.drop(key, waiter{inbox: p.inbox})
		}
	}
	m.adjustEnd(key)
}

// acquirePermit does the work of Acquire for a claim with a Limit.
func (m *Memory) acquirePermit(c store.Claim) store.Grant {
	if p, ok := m.confirm(c); ok {
		return m.permitGrant(p)
	}
	m.reap(c.Key)
	if p, ok := m.serve(c.Key, &c); ok {
		return m.permitGrant(p)
	}
	if len(m.queue(c.Key)) == 0 && m.fits(c.Key, c.Weight, c.Limit) {
		own := waiterOf(c)
		own.inbox = ""
		return m.permitGrant(m.enterPermit(c.Key, own, c.TTL, false))
	}
	return m.refuse(c)
}

// permitGrant returns the answer Granted for the permit p.
func (m *Memory) permitGrant(p permit) store.Grant {
	return store.Grant{State: store.Granted, At: m.clock(), Fence: p.fence, FenceCount: p.block}
}

// serve grants units of key to the waiters in their order, as long as enough units are free for the
// head of the queue. The claim own belongs to the call that is under way. Its grant lasts for the
// whole TTL, and serve does not notify its process, but returns the permit and true. A head that
// wants the key without a Limit gets the key when no unit is held.
func (m *Memory) serve(key string, own *store.Claim) (granted permit, ok bool) {
	asker, notified, last := "", false, ""
	if own != nil {
		asker = own.Owner
	}
	for waiting := m.queue(key); len(waiting) > 0 && !m.isHeldAlone(key); waiting = m.queue(key) {
		head := waiting[0]
		used, smallest := m.leases[key].permits.usage()
		switch {
		case m.isDead(head, asker):
			m.drop(key, head)
			continue
		case head.limit == 0 && used == 0:
			m.hand(key, asker, locker.Exclusive)
			return granted, ok
		case head.limit > 0 && m.fits(key, head.weight, head.limit):
			m.leave(key, head.owner)
			if head.owner == asker {
				head.inbox = ""
				granted, ok = m.enterPermit(key, head, own.TTL, false), true
				continue
			}
			p := m.enterPermit(key, head, head.hand, true)
			m.publish(head.inbox, store.Event{
				Kind: store.EventGranted, Key: key, Owner: head.owner, Fence: p.fence, FenceCount: p.block, HandoffTTL: head.hand, At: m.clock(),
			})
			notified, last = true, head.inbox
			continue
		case head.limit > 0 && used < smallest && !m.watchHead(key, head, asker):
			m.drop(key, head)
			continue
		}
		break
	}
	if s := m.leases[key].permits; notified && s != nil {
		m.notifyNext(key, last, m.earliest(s))
	}
	return granted, ok
}

// watchHead is called when some units of key are free, but too few for head, the head of the queue.
// It notifies a new head to ask at once, and notifies the next process to ask later. It returns
// false if the head has had time to ask but has not asked, because then the head loses its place.
// The asker is the owner whose call is under way.
func (m *Memory) watchHead(key string, head waiter, asker string) bool {
	s := m.leases[key].permits
	if head.owner != asker && s.head == head.owner {
		return m.now().Sub(s.headNotified) <= standsStill
	}
	if head.owner != asker {
		m.notifyHead(key, head, time.Millisecond)
		if next, ok := m.next(key, head.inbox); ok {
			m.notifyHead(key, next, standsStill)
		}
	}
	s.head, s.headNotified = head.owner, m.now()
	return true
}

// waitTime returns how long a refused caller must wait at least: until the next permit of l runs
// out, or until a head that does not react loses its place.
func (m *Memory) waitTime(l lease, asker string) time.Duration {
	if l.permits == nil {
		return m.timeLeft(l)
	}
	left := m.earliest(l.permits)
	used, limit := l.permits.usage()
	if h := l.permits.head; h != "" && h != asker && used < limit {
		left = min(left, max(l.permits.headNotified.Add(standsStill+time.Millisecond).Sub(m.now()), time.Millisecond))
	}
	return left
}

// keptFirst reports whether KeepFor keeps the permit of l that runs out next.
func (m *Memory) keptFirst(l lease) bool {
	var info locker.Info
	if l.permits != nil {
		m.permitsOf(l, &info)
	}
	return info.Kept
}

// releasePermit gives back the units of c's owner, or its place in the queue, and serves the queue.
func (m *Memory) releasePermit(c store.Claim) store.Grant {
	p, held := m.takePermit(c.Key, c.Owner)
	ours := held && m.now().Before(p.ends)
	n, noted := m.noteFor(c.Key, c.Owner)
	revoked := !held && noted && n.revoked
	if c.TombstoneTTL > 0 && !revoked {
		m.notes[keyOwner{c.Key, c.Owner}] = note{ends: m.now().Add(c.TombstoneTTL)}
	}
	first, queued := m.next(c.Key, "")
	left := c.Queue && m.leave(c.Key, c.Owner)
	if ours && c.Complete && c.OnceFor > 0 {
		m.doneMarks[c.Key] = m.now().Add(c.OnceFor)
		m.dismiss(c.Key)
	}
	if ours && c.KeepFor > 0 {
		p.metadata, p.inbox, p.handed, p.kept, p.ends = "", "", false, true, m.now().Add(c.KeepFor)
		m.putPermit(c.Key, "kept-"+phaseOf(p.fence), p)
	}
	m.adjustEnd(c.Key)
	m.reap(c.Key)
	if !m.isHeldAlone(c.Key) {
		m.serve(c.Key, nil)
	}
	m.hint(c.Key)
	if s := m.leases[c.Key].permits; s != nil && (ours && c.KeepFor > 0 || left && queued && first.owner == c.Owner) {
		if next, ok := m.next(c.Key, ""); ok { // next is now the head
			m.notifyHead(c.Key, next, m.earliest(s))
		}
	}
	switch {
	case ours:
		return store.Grant{State: store.Released, At: m.clock()}
	case revoked:
		return store.Grant{State: store.Revoked, Reason: n.reason, At: m.clock()}
	case c.Complete && c.OnceFor > 0 && m.isDone(c.Key):
		return store.Grant{State: store.Done, At: m.clock()}
	}
	return store.Grant{State: store.NotOurs, At: m.clock()}
}

// breakPermit revokes the permit of key with the given fence, for the given reason.
func (m *Memory) breakPermit(key string, fence uint64, reason string) store.Grant {
	for owner, p := range m.leases[key].permits.byOwner {
		if p.fence != fence || !m.now().Before(p.ends) {
			continue
		}
		m.takePermit(key, owner)
		if !p.kept {
			m.notes[keyOwner{key, owner}] = note{revoked: true, reason: reason, ends: m.now().Add(max(p.ends.Sub(m.now()), time.Minute))}
		}
		m.adjustEnd(key)
		m.reap(key)
		m.serve(key, nil)
		m.hint(key)
		return store.Grant{State: store.Released, At: m.clock()}
	}
	return store.Grant{State: store.NotOurs, At: m.clock()}
}

// permitsOf adds the permits of the lease l to info, in the order in which they run out.
func (m *Memory) permitsOf(l lease, info *locker.Info) {
	for _, p := range l.permits.byOwner {
		if !m.now().Before(p.ends) {
			continue
		}
		info.Permits = append(info.Permits, store.Permit{
			Fence: p.fence, Weight: p.weight, Limit: p.limit, Since: p.grantedAt, Left: p.ends.Sub(m.now()), Kept: p.kept, Metadata: p.metadata,
		})
		info.Used += p.weight
	}
	slices.SortFunc(info.Permits, func(a, b store.Permit) int {
		return cmp.Or(cmp.Compare(a.Left, b.Left), cmp.Compare(a.Fence, b.Fence))
	})
	if len(info.Permits) > 0 {
		_, info.Limit = l.permits.usage()
		first := info.Permits[0]
		info.Left, info.Since, info.Kept, info.Metadata = first.Left, first.Since, first.Kept, first.Metadata
	}
}
