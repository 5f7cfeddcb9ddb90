package lockertest

import (
	"strconv"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// Memory is a lock server in memory. It keeps leases, queues, fences, tombstones and
// done marks as the Redis Stores do. Its clock is time.Now, so it obeys the virtual clock of a
// testing/synctest bubble. A Memory is for tests only, because its locks do not exclude other
// processes of the machine. Make a Memory with [NewMemory]. A Memory is safe for concurrent use.
//
// A Memory is also the first [Process] that uses it, so one Engine can use the Memory directly. For
// each further Engine, [Memory.NewProcess] makes a Process.
type Memory struct {
	*Process

	mu        sync.Mutex
	leases    map[string]lease
	queues    map[string]queue
	notes     map[keyOwner]note    // tombstones
	doneMarks map[string]time.Time // until when each done mark lasts
	counter   uint64               // the last fence
	clockLead time.Duration        // how far the server's clock is ahead of time.Now
	releaser  string               // the traceparent of the lease that is being released
	faults    map[locker.Op]fault
	calls     map[locker.Op]int
	processes []*Process
	losses    *losses // of EachLoss; nil: none
}

// lease is the holder of a key.
type lease struct {
	owner     string // "" for a foreign holder, and for a key that only Rule.KeepFor keeps locked
	fence     uint64
	block     int
	metadata  string
	ends      time.Time // zero: the lease has no end
	grantedAt time.Time
	foreign   bool
	kept      bool
	readers   map[string]reader // the readers by owner; nil: the lease is no phase of readers
	permits   *permits          // nil: no semaphore
}

// keyOwner is a key and one of its owners.
type keyOwner struct{ key, owner string }

// note is a tombstone.
type note struct {
	revoked bool // false: the owner was undone
	reason  string
	ends    time.Time
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	m := &Memory{faults: make(map[locker.Op]fault), calls: make(map[locker.Op]int)}
	m.forget()
	m.Process = m.NewProcess()
	return m
}

// forget deletes everything except the fence counter. The caller holds m.mu.
func (m *Memory) forget() {
	m.leases, m.queues = make(map[string]lease), make(map[string]queue)
	m.notes, m.doneMarks = make(map[keyOwner]note), make(map[string]time.Time)
}

// now returns the time of the server's clock. The caller holds m.mu.
func (m *Memory) now() time.Time { return time.Now().Add(m.clockLead) }

// clock returns the server's clock as a client reads it. The result has no monotonic part, so that
// no caller compares it with a local time.
func (m *Memory) clock() time.Time { return time.UnixMicro(m.now().UnixMicro()) }

// lease returns the lease of key, and whether there is one that has not run out. The caller holds
// m.mu.
func (m *Memory) lease(key string) (lease, bool) {
	l, ok := m.leases[key]
	if ok && !l.ends.IsZero() && !m.now().Before(l.ends) {
		// A lease with permits is kept for permitsLife, because reap must still find the permits
		// that were not confirmed.
		if l.permits == nil || m.now().Sub(l.ends) >= permitsLife {
			delete(m.leases, key)
		}
		return lease{}, false
	}
	return l, ok
}

// timeLeft returns how long l still lasts, or -1 when l has no end. The caller holds m.mu.
func (m *Memory) timeLeft(l lease) time.Duration {
	if l.ends.IsZero() {
		return -1
	}
	return l.ends.Sub(m.now())
}

// lengthen makes l, the lease of key, last at least ttl from now. The caller holds m.mu.
func (m *Memory) lengthen(key string, l lease, ttl time.Duration) {
	if m.timeLeft(l) < ttl {
		l.ends = m.now().Add(ttl)
		m.leases[key] = l
	}
}

// noteFor returns the tombstone of owner under key, and whether there is one that has not run out.
// The caller holds m.mu.
func (m *Memory) noteFor(key, owner string) (note, bool) {
	id := keyOwner{key, owner}
	n, ok := m.notes[id]
	if ok && !m.now().Before(n.ends) {
		delete(m.notes, id)
		return note{}, false
	}
	return n, ok
}

// revocationOf returns the tombstone that a revocation has left for c's owner, or for the phase
// in which c reads. The caller holds m.mu.
func (m *Memory) revocationOf(c store.Claim) (note, bool) {
	if n, _ := m.noteFor(c.Key, c.Owner); n.revoked {
		return n, true
	}
	n, _ := m.noteFor(c.Key, phaseOf(c.Fence))
	return n, n.revoked
}

// phaseOf returns the name of the phase with this fence. All readers of the phase have this fence.
// A revocation of the phase leaves its note under this name, instead of an owner's token.
func phaseOf(fence uint64) string { return strconv.FormatUint(fence, 10) }

// isDone reports whether key has a done mark. The caller holds m.mu.
func (m *Memory) isDone(key string) bool { return m.now().Before(m.doneMarks[key]) }

// mint reserves n fences, and returns the first of them and their number. As in the Redis Stores, a
// fence is at most 100 ms ahead of the clock. The caller holds m.mu.
func (m *Memory) mint(n int) (fence uint64, block int) {
	n = max(n, 1)
	now := uint64(m.now().UnixMicro())
	fence = max(m.counter+1, now)
	if fence+uint64(n)-1 > now+100_000 {
		n = 1
	}
	m.counter = fence + uint64(n) - 1
	return fence, n
}
