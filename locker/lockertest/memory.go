package lockertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Memory is a [locker.Store] without a server. It keeps leases, fences, tombstones and done marks as the Redis Stores do,
// by time.Now, so it obeys the virtual clock of a testing/synctest bubble. It is for tests: it excludes nobody in
// another process. Make one with [NewMemory]; it is safe for concurrent use.
type Memory struct {
	mu      sync.Mutex
	leases  map[string]entry
	notes   map[string]note      // tombstones, by key and owner
	done    map[string]time.Time // done marks, until when
	counter uint64               // the last fence
	faults  map[locker.Op]fault
	calls   map[locker.Op]int

	earsMu  sync.RWMutex // held for reading while the listeners are called
	ears    map[int]func(locker.Event)
	nextEar int
}

// entry is one key's lease.
type entry struct {
	owner    string // "" with foreign and kept
	fence    uint64
	block    int
	metadata string
	ends     time.Time // zero: never
	since    time.Time
	foreign  bool
	kept     bool
}

type note struct {
	revoked bool
	reason  string
	ends    time.Time
}

// fault is what the knobs set for one operation.
type fault struct {
	err   error
	lost  int // replies to lose
	delay time.Duration
}

// ErrReplyLost is what a call returns whose answer [Memory.LoseReplies] took away: the call has run, and the caller
// cannot know it.
var ErrReplyLost = errors.New("lockertest: the call ran, its answer was lost")

// NewMemory returns an empty Store.
func NewMemory() *Memory {
	m := &Memory{faults: make(map[locker.Op]fault), calls: make(map[locker.Op]int), ears: make(map[int]func(locker.Event))}
	m.Wipe()
	m.counter = 0
	return m
}

var _ interface {
	locker.Store
	locker.Inspector
	locker.Breaker
	locker.Fencer
	locker.Notifier
} = (*Memory)(nil)

// Steal gives key to a stranger, as if its holder had been paused past its lease and somebody else had come. The holder
// learns of it at its next renewal, release or extension. The stranger never renews and stays until [Memory.Free].
func (m *Memory) Steal(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := entry{owner: "stranger", since: time.Now()}
	e.fence, e.block = m.mint(1)
	m.leases[key] = e
}

// Occupy puts a holder at key that is no latchkit lease: another library's. ttl 0: it never ends.
func (m *Memory) Occupy(key string, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := entry{foreign: true, since: time.Now()}
	if ttl > 0 {
		e.ends = time.Now().Add(ttl)
	}
	m.leases[key] = e
}

// Free takes whoever holds key away.
func (m *Memory) Free(key string) {
	m.mu.Lock()
	delete(m.leases, key)
	m.mu.Unlock()
	m.tell(key)
}

// Wipe forgets all but the fence counter, like a server that restarts empty and mints fences from its clock.
func (m *Memory) Wipe() {
	m.mu.Lock()
	m.leases, m.notes, m.done = make(map[string]entry), make(map[string]note), make(map[string]time.Time)
	m.mu.Unlock()
	m.tell("")
}

// Fail makes every call of op (OpAcquire, OpRenew, OpRelease, OpInspect, OpBreak, OpRaiseFence) return err without
// running, until called again with nil. A [*locker.Refusal] proves that nothing was done; any other error leaves the
// caller in doubt.
func (m *Memory) Fail(op locker.Op, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.faults[op]
	f.err = err
	m.faults[op] = f
}

// LoseReplies makes the next n calls of op run and then return [ErrReplyLost].
func (m *Memory) LoseReplies(op locker.Op, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.faults[op]
	f.lost = n
	m.faults[op] = f
}

// Delay makes every call of op take d before it runs, whatever becomes of its context: like go-redis, which does not
// stop a call in flight. 0 ends the delay.
func (m *Memory) Delay(op locker.Op, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.faults[op]
	f.delay = d
	m.faults[op] = f
}

// Calls returns how often op was called, faults included.
func (m *Memory) Calls(op locker.Op) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// Len returns how many keys are held or kept.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for key := range m.leases {
		if _, ok := m.lease(key); ok {
			n++
		}
	}
	return n
}

// Acquire is the Store's step.
func (m *Memory) Acquire(_ context.Context, c locker.Claim) (locker.Grant, error) {
	return step(m, locker.OpAcquire, func() (locker.Grant, error) {
		if n, ok := m.note(c.Key, c.Owner); ok {
			if n.revoked {
				return locker.Grant{State: locker.Revoked, Reason: n.reason, At: time.Now()}, nil
			}
			return locker.Grant{State: locker.Undone, At: time.Now()}, nil
		}
		if c.Once > 0 && time.Now().Before(m.done[c.Key]) {
			return locker.Grant{State: locker.Done, At: time.Now()}, nil
		}
		e, taken := m.lease(c.Key)
		switch {
		case taken && e.owner != c.Owner:
			return locker.Grant{State: locker.Busy, At: time.Now(), Holder: locker.Holder{
				Fence: e.fence, Left: left(e), Metadata: e.metadata, Foreign: e.foreign,
			}}, nil
		case taken:
			if left(e) < c.TTL {
				e.ends = time.Now().Add(c.TTL)
			}
		default:
			e = entry{owner: c.Owner, metadata: c.Metadata, since: time.Now(), ends: time.Now().Add(c.TTL)}
			e.fence, e.block = m.mint(max(c.Block, 1))
		}
		m.leases[c.Key] = e
		return locker.Grant{State: locker.Granted, At: time.Now(), Fence: e.fence, Block: e.block}, nil
	})
}

// Renew is the Store's step.
func (m *Memory) Renew(_ context.Context, cs []locker.Claim) ([]locker.Grant, error) {
	return step(m, locker.OpRenew, func() ([]locker.Grant, error) {
		grants := make([]locker.Grant, len(cs))
		for i, c := range cs {
			grants[i] = locker.Grant{State: locker.NotOurs, At: time.Now()}
			if e, ok := m.lease(c.Key); ok && e.owner == c.Owner {
				if left(e) < c.TTL {
					e.ends = time.Now().Add(c.TTL)
					m.leases[c.Key] = e
				}
				grants[i].State = locker.Granted
			} else if n, ok := m.note(c.Key, c.Owner); ok && n.revoked {
				grants[i].State, grants[i].Reason = locker.Revoked, n.reason
			}
		}
		return grants, nil
	})
}

// Release is the Store's step.
func (m *Memory) Release(_ context.Context, c locker.Claim) (locker.Grant, error) {
	freed := false
	g, err := step(m, locker.OpRelease, func() (locker.Grant, error) {
		e, ok := m.lease(c.Key)
		ours := ok && e.owner == c.Owner
		if ours {
			if c.Keep > 0 {
				m.leases[c.Key] = entry{kept: true, fence: e.fence, since: e.since, ends: time.Now().Add(c.Keep)}
			} else {
				delete(m.leases, c.Key)
				freed = true
			}
		}
		if n, ok := m.note(c.Key, c.Owner); ok && n.revoked {
			return locker.Grant{State: locker.Revoked, Reason: n.reason, At: time.Now()}, nil
		}
		if c.Undo > 0 {
			m.notes[c.Key+"\x00"+c.Owner] = note{ends: time.Now().Add(c.Undo)}
		}
		if !ours {
			state := locker.NotOurs
			if c.Complete && time.Now().Before(m.done[c.Key]) {
				state = locker.Done
			}
			return locker.Grant{State: state, At: time.Now()}, nil
		}
		if c.Complete && c.Once > 0 {
			m.done[c.Key] = time.Now().Add(c.Once)
		}
		return locker.Grant{State: locker.Released, At: time.Now()}, nil
	})
	if freed {
		m.tell(c.Key)
	}
	return g, err
}

// Inspect is the Store's step.
func (m *Memory) Inspect(_ context.Context, key string) (locker.Info, error) {
	return step(m, locker.OpInspect, func() (locker.Info, error) {
		e, ok := m.lease(key)
		if !ok {
			return locker.Info{}, nil
		}
		info := locker.Info{
			Held: true, Kept: e.kept, Foreign: e.foreign, Fence: e.fence, Left: left(e), Metadata: e.metadata,
		}
		if !e.foreign {
			info.Since = e.since
		}
		return info, nil
	})
}

// Break is the Store's step.
func (m *Memory) Break(_ context.Context, key string, fence uint64, reason string) (locker.Grant, error) {
	freed := false
	g, err := step(m, locker.OpBreak, func() (locker.Grant, error) {
		e, ok := m.lease(key)
		if ok && e.foreign {
			return locker.Grant{}, &locker.Refusal{Err: locker.ErrUnsupported}
		}
		if !ok || e.fence != fence {
			return locker.Grant{State: locker.NotOurs}, nil
		}
		delete(m.leases, key)
		if !e.kept {
			m.notes[key+"\x00"+e.owner] = note{revoked: true, reason: reason, ends: time.Now().Add(max(left(e), time.Minute))}
		}
		freed = true
		return locker.Grant{State: locker.Released, At: time.Now()}, nil
	})
	if freed {
		m.tell(key)
	}
	return g, err
}

// RaiseFence is the Store's step.
func (m *Memory) RaiseFence(_ context.Context, _ string, atLeast uint64) error {
	_, err := step(m, locker.OpRaiseFence, func() (struct{}, error) {
		m.counter = max(m.counter, atLeast)
		return struct{}{}, nil
	})
	return err
}

// Listen makes the Store call tell when a key is freed.
func (m *Memory) Listen(tell func(locker.Event)) (stop func()) {
	m.earsMu.Lock()
	defer m.earsMu.Unlock()
	id := m.nextEar
	m.nextEar++
	m.ears[id] = tell
	return func() {
		m.earsMu.Lock()
		defer m.earsMu.Unlock()
		delete(m.ears, id)
	}
}

// Inbox names where events are told: always the same place.
func (m *Memory) Inbox(string) string { return "memory" }

// Open returns the Inbox.
func (m *Memory) Open(context.Context, string) (string, error) { return "memory", nil }

// Reset does nothing: nobody is ever deaf.
func (m *Memory) Reset(string) {}

// step runs one call with the faults that are set for it.
func step[T any](m *Memory, op locker.Op, run func() (T, error)) (T, error) {
	m.mu.Lock()
	m.calls[op]++
	f := m.faults[op]
	if f.delay > 0 {
		m.mu.Unlock()
		<-time.After(f.delay)
		m.mu.Lock()
		f = m.faults[op]
	}
	defer m.mu.Unlock()
	var none T
	if f.err != nil {
		return none, f.err
	}
	v, err := run()
	if f.lost > 0 {
		f.lost--
		m.faults[op] = f
		return none, ErrReplyLost
	}
	return v, err
}

// tell wakes the listeners; m.mu is not held.
func (m *Memory) tell(key string) {
	m.earsMu.RLock()
	defer m.earsMu.RUnlock()
	for _, tell := range m.ears {
		tell(locker.Event{Kind: locker.EventFree, Key: key})
	}
}

// lease returns key's lease unless it has run out; m.mu is held.
func (m *Memory) lease(key string) (entry, bool) {
	e, ok := m.leases[key]
	if ok && !e.ends.IsZero() && !time.Now().Before(e.ends) {
		delete(m.leases, key)
		return entry{}, false
	}
	return e, ok
}

func (m *Memory) note(key, owner string) (note, bool) {
	id := key + "\x00" + owner
	n, ok := m.notes[id]
	if ok && !time.Now().Before(n.ends) {
		delete(m.notes, id)
		return note{}, false
	}
	return n, ok
}

// mint reserves n fences, by the rule of the Redis Stores: never more than 100 ms ahead of the clock; m.mu is held.
func (m *Memory) mint(n int) (fence uint64, block int) {
	now := uint64(time.Now().UnixMicro())
	fence = max(m.counter+1, now)
	if fence+uint64(n)-1 > now+100_000 {
		n = 1
	}
	m.counter = fence + uint64(n) - 1
	return fence, n
}

// left is how long e still lasts, -1 when it has no end.
func left(e entry) time.Duration {
	if e.ends.IsZero() {
		return -1
	}
	return time.Until(e.ends)
}
