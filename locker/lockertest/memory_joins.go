package lockertest

import (
	"context"
	"maps"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// joins has two maps for a lease: the delegations, by the digest of their secret, and the
// callers that have joined, by their token.
type joins struct {
	secrets map[[32]byte]admission
	tokens  map[string]admission
}

// An admission lets a call join a lease. The field hold has the first fence of the lease's holder.
type admission struct {
	hold, fence uint64
	depth       int
	ends        time.Time
}

// Delegate implements store.Joiner.
func (p *Process) Delegate(_ context.Context, c store.Claim, pass locker.Delegation, timeout time.Duration) (store.Grant, error) {
	return step(p, locker.OpDelegate, func(m *Memory) (store.Grant, error) { return m.delegate(c, pass, timeout), nil })
}

// Join implements store.Joiner.
func (p *Process) Join(_ context.Context, c store.Claim) (store.Grant, error) {
	return step(p, locker.OpJoin, func(m *Memory) (store.Grant, error) { return m.join(c), nil })
}

// Leave implements store.Joiner.
func (p *Process) Leave(_ context.Context, c store.Claim) (store.Grant, error) {
	return step(p, locker.OpRelease, func(m *Memory) (store.Grant, error) { return m.leaveJoin(c), nil })
}

// joinsOf returns the joins of key that are still valid: neither their time nor their lease is
// over. The caller holds m.mu.
func (m *Memory) joinsOf(key string) (lease, joins, bool) {
	l, held := m.lease(key)
	if !held || l.owner == "" {
		return l, joins{}, false
	}
	j, ok := m.joins[key]
	if !ok {
		j = joins{make(map[[32]byte]admission), make(map[string]admission)}
		m.joins[key] = j
	}
	maps.DeleteFunc(j.secrets, func(_ [32]byte, a admission) bool { return a.hold != l.fence || !m.now().Before(a.ends) })
	maps.DeleteFunc(j.tokens, func(_ string, a admission) bool { return a.hold != l.fence })
	return l, j, true
}

// delegate executes the step Delegate.
func (m *Memory) delegate(c store.Claim, p locker.Delegation, timeout time.Duration) store.Grant {
	l, j, ok := m.joinsOf(c.Key)
	if !ok {
		return store.Grant{State: store.NotOurs, At: m.clock()}
	}
	if l.owner != c.Owner {
		joined, ok := j.tokens[c.Owner]
		if !ok || joined.depth < 1 {
			return store.Grant{State: store.NotOurs, At: m.clock()}
		}
		p.Depth = min(p.Depth, joined.depth-1)
	}
	j.secrets[p.Secret] = admission{hold: l.fence, fence: p.Fence, depth: p.Depth, ends: m.now().Add(timeout)}
	return store.Grant{State: store.Granted, At: m.clock(), FenceCount: 1}
}

// join executes the step Join.
func (m *Memory) join(c store.Claim) store.Grant {
	l, j, ok := m.joinsOf(c.Key)
	if !ok {
		return store.Grant{State: store.NotOurs, At: m.clock()}
	}
	a, joined := j.tokens[c.Owner]
	switch {
	case joined:
	case c.Delegation.Secret != [32]byte{}:
		if a, ok = j.secrets[c.Delegation.Secret]; !ok {
			return store.Grant{State: store.NotOurs, At: m.clock()}
		}
	case c.Delegation.Hold == l.fence:
		a = admission{hold: l.fence, fence: c.Delegation.Fence, depth: c.Delegation.Depth}
	default:
		return store.Grant{State: store.NotOurs, At: m.clock()}
	}
	j.tokens[c.Owner] = a
	return store.Grant{State: store.Granted, At: m.clock(), Fence: a.fence, FenceCount: 1, Left: m.timeLeft(l)}
}

// leaveJoin executes the step Leave.
func (m *Memory) leaveJoin(c store.Claim) store.Grant {
	_, j, ok := m.joinsOf(c.Key)
	if _, joined := j.tokens[c.Owner]; !ok || !joined {
		return store.Grant{State: store.NotOurs, At: m.clock()}
	}
	delete(j.tokens, c.Owner)
	return store.Grant{State: store.Released, At: m.clock()}
}
