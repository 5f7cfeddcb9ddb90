package lockertest

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// The functions below are the steps of the Store. Memory.mu is held during each step, so each step
// is atomic, like a script on Redis.

// endpoint has the methods with which an Engine uses a Process.
type endpoint struct{ *Process }

// steps is the interface of endpoint. Process embeds it, so a Process is a Store, but its
// documentation shows only the methods that tests call.
type steps interface {
	store.Store
	store.Notifier
	Capabilities() store.Capabilities
	Inspect(ctx context.Context, key string) (locker.Info, error)
	Revoke(ctx context.Context, key string, fence uint64, reason string) (store.Grant, error)
}

// Capabilities returns what the Store can do besides its steps.
func (p endpoint) Capabilities() store.Capabilities {
	return store.Capabilities{
		Looked: p.memory.losses.hook(), Notifier: p, Readers: true, Permits: true,
		Inspect: p.Inspect, Keys: p.Keys, Queue: p.Queue, Revoke: p.Revoke, RaiseFence: p.RaiseFence,
	}
}

// Acquire implements store.Store.
func (p endpoint) Acquire(_ context.Context, c store.Claim) (store.Grant, error) {
	return step(p.Process, locker.OpAcquire, func(m *Memory) (store.Grant, error) {
		if err := tooHeavy(c); err != nil {
			return store.Grant{}, err
		}
		return m.acquire(c, locker.Exclusive), nil
	})
}

// Renew implements store.Store.
func (p endpoint) Renew(_ context.Context, cs []store.Claim) ([]store.Grant, error) {
	return step(p.Process, locker.OpRenew, func(m *Memory) ([]store.Grant, error) {
		grants := make([]store.Grant, len(cs))
		for i, c := range cs {
			grants[i] = m.renew(c)
		}
		return grants, nil
	})
}

// Release implements store.Store.
func (p endpoint) Release(_ context.Context, c store.Claim) (store.Grant, error) {
	return step(p.Process, locker.OpRelease, func(m *Memory) (store.Grant, error) { return m.release(c), nil })
}

// Inspect is one of the [store.Capabilities].
func (p endpoint) Inspect(_ context.Context, key string) (locker.Info, error) {
	return step(p.Process, locker.OpInspect, func(m *Memory) (locker.Info, error) { return m.inspect(key), nil })
}

// Keys is one of the [store.Capabilities]. The faults that are set for OpInspect affect it too.
func (p endpoint) Keys(_ context.Context, pattern string) ([]string, error) {
	return step(p.Process, locker.OpInspect, func(m *Memory) ([]string, error) { return m.keys(pattern) })
}

// Queue is one of the [store.Capabilities]. The faults that are set for OpInspect affect it too.
func (p endpoint) Queue(_ context.Context, key string) ([]locker.Waiter, error) {
	return step(p.Process, locker.OpInspect, func(m *Memory) ([]locker.Waiter, error) { return m.line(key), nil })
}

// Revoke is one of the [store.Capabilities].
func (p endpoint) Revoke(_ context.Context, key string, fence uint64, reason string) (store.Grant, error) {
	return step(p.Process, locker.OpRevoke, func(m *Memory) (store.Grant, error) { return m.breakHolder(key, fence, reason) })
}

// RaiseFence is one of the [store.Capabilities].
func (p endpoint) RaiseFence(_ context.Context, _ string, atLeast uint64) error {
	_, err := step(p.Process, locker.OpRaiseFence, func(m *Memory) (struct{}, error) {
		m.counter = max(m.counter, atLeast)
		return struct{}{}, nil
	})
	return err
}

// acquire executes the step Acquire. The parameter turn is Shared if a writer has just released the
// key, because then it is the turn of the readers.
func (m *Memory) acquire(c store.Claim, turn locker.Mode) store.Grant {
	if n, ok := m.noteFor(c.Key, c.Owner); ok {
		if n.revoked {
			return store.Grant{State: store.Revoked, Reason: n.reason, At: m.clock()}
		}
		return store.Grant{State: store.Undone, At: m.clock()}
	}
	if c.OnceFor > 0 && m.isDone(c.Key) {
		return store.Grant{State: store.Done, At: m.clock()}
	}
	if l, held := m.lease(c.Key); held && l.owner == c.Owner {
		m.lengthen(c.Key, l, c.TTL)
		m.leave(c.Key, c.Owner)
		return m.grantOf(l)
	}
	if c.Limit > 0 {
		return m.acquirePermit(c)
	}
	m.reap(c.Key)
	m.hand(c.Key, c.Owner, turn)
	if g, ok := m.tryRead(c); ok {
		return g
	}
	if _, held := m.lease(c.Key); held {
		return m.refuse(c)
	}
	m.leave(c.Key, c.Owner)
	return m.grantOf(m.grantKey(c.Key, c.Owner, c.Metadata, c.FenceCount, c.TTL))
}

// grantKey grants key, which is free, to owner, and returns the lease.
func (m *Memory) grantKey(key, owner, metadata string, block int, ttl time.Duration) lease {
	l := lease{owner: owner, metadata: metadata, grantedAt: m.now(), ends: m.now().Add(ttl)}
	l.fence, l.block = m.mint(block)
	m.leases[key] = l
	return l
}

// grantOf returns the answer Granted for the lease l.
func (m *Memory) grantOf(l lease) store.Grant {
	return store.Grant{State: store.Granted, At: m.clock(), Fence: l.fence, FenceCount: l.block}
}

// refuse puts c into the queue if c may wait, and returns the answer Busy with the holder of the
// key.
func (m *Memory) refuse(c store.Claim) store.Grant {
	if c.Queue {
		m.enqueue(c)
	}
	l, _ := m.lease(c.Key)
	if l.readers != nil && c.Queue && c.Mode == locker.Exclusive && m.place(c.Key, c.Owner) == 1 {
		m.announce(c.Key, l)
	}
	return store.Grant{
		State: store.Busy, At: m.clock(),
		Holder:       store.Holder{Fence: l.fence, Left: m.waitTime(l, c.Owner), Metadata: l.metadata, Foreign: l.foreign, Kept: l.kept || m.keptFirst(l)},
		Place:        m.place(c.Key, c.Owner),
		NotListening: c.Queue && c.Inbox != "" && m.listener(c.Inbox) == nil,
	}
}

func (m *Memory) renew(c store.Claim) store.Grant {
	if l, held := m.lease(c.Key); held && l.owner == c.Owner {
		m.lengthen(c.Key, l, c.TTL)
		if c.ByHandoff {
			m.leave(c.Key, c.Owner)
		}
		return store.Grant{State: store.Granted, At: m.clock()}
	}
	if _, ok := m.confirm(c); ok {
		return store.Grant{State: store.Granted, At: m.clock()}
	}
	if l, reads := m.phaseFor(c); reads && l.fence == c.Fence {
		return m.lengthenReader(c, l)
	}
	return m.notOurs(c)
}

// notOurs returns the answer to a step of c, if c's owner does not hold the key: Revoked or
// NotOurs.
func (m *Memory) notOurs(c store.Claim) store.Grant {
	if n, ok := m.revocationOf(c); ok {
		return store.Grant{State: store.Revoked, Reason: n.reason, At: m.clock()}
	}
	return store.Grant{State: store.NotOurs, At: m.clock()}
}

func (m *Memory) release(c store.Claim) store.Grant {
	l, held := m.lease(c.Key)
	if m.leases[c.Key].permits != nil || c.Limit > 0 {
		return m.releasePermit(c)
	}
	ours := held && l.owner == c.Owner
	left := (ours || c.Queue) && m.leave(c.Key, c.Owner)
	_, reads := m.phaseFor(c)
	switch {
	case !held:
		m.hand(c.Key, "", locker.Exclusive)
	case l.readers != nil && !reads && left:
		// The owner may have been a waiting writer with waiting readers behind it.
		m.admit(c.Key, "")
	}
	n, thrownOut := m.revocationOf(c)
	// A reader needs a tombstone of its own, because the tombstone of its phase does not refuse
	// a late acquire.
	if own, _ := m.noteFor(c.Key, c.Owner); c.TombstoneTTL > 0 && (ours || reads || !own.revoked) {
		m.notes[keyOwner{c.Key, c.Owner}] = note{ends: m.now().Add(c.TombstoneTTL)}
	}
	switch {
	case reads:
		return m.leavePhase(c, l)
	case ours:
		return m.giveUp(c, l)
	case thrownOut:
		return store.Grant{State: store.Revoked, Reason: n.reason, At: m.clock()}
	case c.Complete && m.isDone(c.Key):
		return store.Grant{State: store.Done, At: m.clock()}
	}
	return store.Grant{State: store.NotOurs, At: m.clock()}
}

// giveUp ends l, the lease of c. It frees the key, or keeps it locked without an owner, and serves
// the queue.
func (m *Memory) giveUp(c store.Claim, l lease) store.Grant {
	defer m.setReleaser(c)()
	if c.Complete && c.OnceFor > 0 {
		m.doneMarks[c.Key] = m.now().Add(c.OnceFor)
		m.dismiss(c.Key)
	}
	if c.KeepFor > 0 {
		m.leases[c.Key] = lease{kept: true, fence: l.fence, grantedAt: l.grantedAt, ends: m.now().Add(c.KeepFor)}
		if head, ok := m.next(c.Key, ""); ok {
			m.notifyHead(c.Key, head, c.KeepFor)
		}
	} else {
		delete(m.leases, c.Key)
	}
	m.serveQueue(c.Key, locker.Shared)
	return store.Grant{State: store.Released, At: m.clock()}
}

func (m *Memory) inspect(key string) locker.Info {
	info := locker.Info{Waiters: m.waiters(key)}
	l, held := m.lease(key)
	if !held {
		return info
	}
	info.Held, info.Kept, info.Foreign = true, l.kept, l.foreign
	info.Fence, info.Left, info.Metadata = l.fence, m.timeLeft(l), l.metadata
	if !l.foreign {
		info.Since = l.grantedAt
	}
	if l.permits != nil {
		m.permitsOf(l, &info)
	}
	if l.readers != nil {
		info.Mode, info.Reading = locker.Shared, m.readersOf(l)
		info.Readers = len(info.Reading)
	}
	return info
}

func (m *Memory) breakHolder(key string, fence uint64, reason string) (store.Grant, error) {
	l, held := m.lease(key)
	if held && l.foreign {
		return store.Grant{}, &store.Refusal{Err: locker.ErrUnsupported}
	}
	if held && l.permits != nil {
		return m.breakPermit(key, fence, reason), nil
	}
	if !held || fence < l.fence || fence-l.fence >= uint64(max(l.block, 1)) {
		return store.Grant{State: store.NotOurs, At: m.clock()}, nil
	}
	delete(m.leases, key)
	m.leave(key, l.owner)
	revoked := note{revoked: true, reason: reason, ends: m.now().Add(max(m.timeLeft(l), time.Minute))}
	turn := locker.Shared
	switch {
	case l.readers != nil:
		m.notes[keyOwner{key, phaseOf(l.fence)}] = revoked
		turn = locker.Exclusive
	case !l.kept:
		m.notes[keyOwner{key, l.owner}] = revoked
	}
	m.serveQueue(key, turn)
	return store.Grant{State: store.Released, At: m.clock()}, nil
}
