package lockertest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// permits are the held units of a key. A lease with permits has no owner, and its fence is the
// fence of the first permit that was granted since the key was free.
type permits struct {
	by   map[string]permit // the permits by owner
	head string            // the head of the queue, if units are free but too few for it
	seen time.Time         // when head was notified that the units are too few
}

// permit is one owner's units.
type permit struct {
	weight, limit int
	fence         uint64
	block         int
	metadata      string
	inbox         string // "": the owner receives no events
	since, ends   time.Time
	handed        bool // the permit was granted by message, and its owner has not confirmed it
	kept          bool
}

const (
	standsStill = 3 * time.Second // a head that has not asked for so long after an event counts as gone
	permitsLife = time.Minute     // how long the Memory remembers expired permits
)

var _ store.Permitter = (*Process)(nil)

// Permits implements store.Permitter, so the Engine may give this Store claims with a Limit.
func (p *Process) Permits() {}

// tooHeavy refuses a claim whose Weight is more than its Limit.
func tooHeavy(c store.Claim) error {
	if c.Limit > 0 && c.Weight > c.Limit {
		return &store.Refusal{Err: fmt.Errorf("%w: %d units of %d would never be free", locker.ErrUnsupported, c.Weight, c.Limit)}
	}
	return nil
}

// used returns how many units are held, and the smallest Limit of their holders.
func (s *permits) used() (used, limit int) {
	if s == nil {
		return 0, 0
	}
	for _, p := range s.by {
		used += p.weight
		if limit == 0 || p.limit < limit {
			limit = p.limit
		}
	}
	return used, limit
}

// earliest returns how long it takes until the next permit runs out. The caller holds m.mu, as for
// all methods below.
func (m *Memory) earliest(s *permits) time.Duration {
	var first time.Time
	for _, p := range s.by {
		if first.IsZero() || p.ends.Before(first) {
			first = p.ends
		}
	}
	return max(first.Sub(m.now()), time.Millisecond)
}

// alone reports whether one lease holds the whole key, without permits.
func (m *Memory) alone(key string) bool {
	l, held := m.lease(key)
	return held && l.permits == nil
}

// fits reports whether limit leaves room for weight more units of key.
func (m *Memory) fits(key string, weight, limit int) bool {
	if m.alone(key) {
		return false
	}
	used, smallest := m.leases[key].permits.used()
	return used == 0 || used+weight <= min(limit, smallest)
}

// enterPermit gives w its units for ttl.
func (m *Memory) enterPermit(key string, w waiter, ttl time.Duration, handed bool) permit {
	p := permit{
		weight: w.weight, limit: w.limit, metadata: w.metadata, inbox: w.inbox, since: m.now(), ends: m.now().Add(ttl), handed: handed,
	}
	p.fence, p.block = m.mint(w.block)
	m.putPermit(key, w.owner, p)
	return p
}

func (m *Memory) putPermit(key, owner string, p permit) {
	l := m.leases[key]
	if l.permits == nil || len(l.permits.by) == 0 {
		l = lease{fence: p.fence, since: p.since, permits: &permits{by: make(map[string]permit)}}
	}
	l.permits.by[owner] = p
	m.leases[key] = l
	m.settle(key)
}

// settle makes the lease of key last as long as the last permit.
func (m *Memory) settle(key string) {
	l := m.leases[key]
	if l.permits == nil {
		return
	}
	if len(l.permits.by) == 0 {
		delete(m.leases, key)
		return
	}
	l.ends = time.Time{}
	for _, p := range l.permits.by {
		if p.ends.After(l.ends) {
			l.ends = p.ends
		}
	}
	m.leases[key] = l
}

// takePermit removes an owner's permit.
func (m *Memory) takePermit(key, owner string) (p permit, ok bool) {
	s := m.leases[key].permits
	if s == nil {
		return p, false
	}
	if p, ok = s.by[owner]; ok {
		delete(s.by, owner)
	}
	return p, ok
}

// confirm makes an owner's permit last for at least ttl from now. An owner that confirms its permit
// late still has the permit, unless reap has already taken it back.
func (m *Memory) confirm(c store.Claim) (p permit, ok bool) {
	s := m.leases[c.Key].permits
	if s == nil {
		return p, false
	}
	if p, ok = s.by[c.Owner]; !ok {
		return p, false
	}
	p.handed = false
	if ends := m.now().Add(c.TTL); ends.After(p.ends) {
		p.ends = ends
	}
	m.putPermit(c.Key, c.Owner, p)
	return p, true
}

// reap takes back the expired permits. If an expired permit was never confirmed, its process does
// not react. So this process loses its places in the queue too.
func (m *Memory) reap(key string) {
	l := m.leases[key]
	if l.permits == nil {
		return
	}
	for owner, p := range l.permits.by {
		if m.now().Before(p.ends) {
			continue
		}
		delete(l.permits.by, owner)
		if p.handed && p.inbox != "" {
			m.drop(key, waiter{inbox: p.inbox})
		}
	}
	m.settle(key)
}

// acquirePermit does the work of Acquire for a claim with a Limit.
func (m *Memory) acquirePermit(c store.Claim) store.Grant {
	if p, ok := m.confirm(c); ok {
		return m.permitted(p)
	}
	m.reap(c.Key)
	if p, ok := m.serve(c.Key, &c); ok {
		return m.permitted(p)
	}
	if len(m.queue(c.Key)) == 0 && m.fits(c.Key, c.Weight, c.Limit) {
		own := waiterOf(c)
		own.inbox = ""
		return m.permitted(m.enterPermit(c.Key, own, c.TTL, false))
	}
	return m.busy(c)
}

func (m *Memory) permitted(p permit) store.Grant {
	return store.Grant{State: store.Granted, At: m.at(), Fence: p.fence, FenceCount: p.block}
}

// serve grants units to the waiters in their order, as long as enough units are free for the head
// of the queue. The claim own belongs to the call that is under way. Its grant lasts for the whole
// TTL, and serve does not notify its process. A head that wants the key without a Limit gets the
// key when no unit is held.
func (m *Memory) serve(key string, own *store.Claim) (granted permit, ok bool) {
	asker, notified, last := "", false, ""
	if own != nil {
		asker = own.Owner
	}
	for waiting := m.queue(key); len(waiting) > 0 && !m.alone(key); waiting = m.queue(key) {
		head := waiting[0]
		used, smallest := m.leases[key].permits.used()
		switch {
		case m.dead(head, asker):
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
				Kind: store.EventGranted, Key: key, Owner: head.owner, Fence: p.fence, FenceCount: p.block, HandoffTTL: head.hand, At: m.at(),
			})
			notified, last = true, head.inbox
			continue
		case head.limit > 0 && used < smallest && !m.watch(key, head, asker):
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

// watch is called when some units are free, but too few for the head of the queue. It notifies a
// new head to ask at once, and notifies the next process to ask later. watch returns true if the
// head keeps its place.
func (m *Memory) watch(key string, head waiter, asker string) bool {
	s := m.leases[key].permits
	if head.owner != asker && s.head == head.owner {
		return m.now().Sub(s.seen) <= standsStill
	}
	if head.owner != asker {
		m.notifyHead(key, head, time.Millisecond)
		if next, ok := m.next(key, head.inbox); ok {
			m.notifyHead(key, next, standsStill)
		}
	}
	s.head, s.seen = head.owner, m.now()
	return true
}

// leftOf returns how long a refused caller must wait at least: until the next permit runs out, or
// until a head that does not react loses its place.
func (m *Memory) leftOf(l lease, asker string) time.Duration {
	if l.permits == nil {
		return m.left(l)
	}
	left := m.earliest(l.permits)
	used, limit := l.permits.used()
	if h := l.permits.head; h != "" && h != asker && used < limit {
		left = min(left, max(l.permits.seen.Add(standsStill+time.Millisecond).Sub(m.now()), time.Millisecond))
	}
	return left
}

// releasePermit gives back an owner's units, or its place in the queue, and serves the queue.
func (m *Memory) releasePermit(c store.Claim) store.Grant {
	p, held := m.takePermit(c.Key, c.Owner)
	ours := held && m.now().Before(p.ends)
	n, noted := m.noteFor(c.Key, c.Owner)
	revoked := !held && noted && n.revoked
	if c.TombstoneTTL > 0 && !revoked {
		m.notes[owned{c.Key, c.Owner}] = note{ends: m.now().Add(c.TombstoneTTL)}
	}
	first, queued := m.next(c.Key, "")
	left := c.Queue && m.leave(c.Key, c.Owner)
	if ours && c.Complete && c.Once > 0 {
		m.done[c.Key] = m.now().Add(c.Once)
		m.dismiss(c.Key)
	}
	if ours && c.KeepFor > 0 {
		p.metadata, p.inbox, p.handed, p.kept, p.ends = "", "", false, true, m.now().Add(c.KeepFor)
		m.putPermit(c.Key, "kept-"+phaseOf(p.fence), p)
	}
	m.settle(c.Key)
	m.reap(c.Key)
	if !m.alone(c.Key) {
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
		return store.Grant{State: store.Released, At: m.at()}
	case revoked:
		return store.Grant{State: store.Revoked, Reason: n.reason, At: m.at()}
	case c.Complete && c.Once > 0 && m.isDone(c.Key):
		return store.Grant{State: store.Done, At: m.at()}
	}
	return store.Grant{State: store.NotOurs, At: m.at()}
}

// breakPermit revokes the permit with the given fence.
func (m *Memory) breakPermit(key string, fence uint64, reason string) store.Grant {
	for owner, p := range m.leases[key].permits.by {
		if p.fence != fence || !m.now().Before(p.ends) {
			continue
		}
		m.takePermit(key, owner)
		if !p.kept {
			m.notes[owned{key, owner}] = note{revoked: true, reason: reason, ends: m.now().Add(max(p.ends.Sub(m.now()), time.Minute))}
		}
		m.settle(key)
		m.reap(key)
		m.serve(key, nil)
		m.hint(key)
		return store.Grant{State: store.Released, At: m.at()}
	}
	return store.Grant{State: store.NotOurs, At: m.at()}
}

// permitsOf adds the permits of the lease l to info, in the order in which they run out.
func (m *Memory) permitsOf(l lease, info *locker.Info) {
	for _, p := range l.permits.by {
		if !m.now().Before(p.ends) {
			continue
		}
		info.Permits = append(info.Permits, locker.Permit{
			Fence: p.fence, Weight: p.weight, Limit: p.limit, Since: p.since, Left: p.ends.Sub(m.now()), Kept: p.kept, Metadata: p.metadata,
		})
		info.Used += p.weight
	}
	slices.SortFunc(info.Permits, func(a, b locker.Permit) int {
		return cmp.Or(cmp.Compare(a.Left, b.Left), cmp.Compare(a.Fence, b.Fence))
	})
	if len(info.Permits) > 0 {
		_, info.Limit = l.permits.used()
		first := info.Permits[0]
		info.Left, info.Since, info.Kept, info.Metadata = first.Left, first.Since, first.Kept, first.Metadata
	}
}
