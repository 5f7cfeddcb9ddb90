package readers

import (
	"fmt"
	"slices"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// model is one key with its readers and writers, without a network. Time passes in units, and only
// in the step pass. The model makes its own fences. The first fences of two successive grants
// differ by eachGrant.
type model struct {
	without Rule // the rule that is left out
	now     int

	lease     *lease // nil: the key is free
	stale     map[string]*part
	queue     []place
	queueEnds int
	notes     map[string]note
	done      int // the time until which the done mark lasts
	fence     int // the fence of the last grant
	gone      map[int]bool
	sent      []message
}

// lease is the holder of the key.
type lease struct {
	kind  kind
	owner string // the owner, if the kind is alone
	fence int
	block int
	ends  int
	parts map[string]*part // the parts of the readers by owner, if the kind is phase
}

type kind int

const (
	alone   kind = iota // one owner: a writer, or a reader that got the key from a Locker without readers
	phase               // readers
	kept                // no owner, because AtLeast keeps the key until the lease expires
	foreign             // a lease of another library
)

// part is one reader's part of a phase.
type part struct {
	process int
	ends    int
	count   int // how often the reader is counted: once with all rules, more often without EntryPerToken
}

// place is a waiter in the queue. handed is true if the waiter was granted the key by message and
// has made no call since then.
type place struct {
	claim
	handed bool
}

// note is what a revocation or an undo leaves for an owner.
type note struct {
	revoked bool // true after a revocation, false after an undo
	ends    int
}

// claim is the request of an owner. The owner sends the same request with each call.
type claim struct {
	owner   string
	process int  // noInbox: the owner receives no messages
	plain   bool // the owner's Locker has no readers
	mode    locker.Mode
	queue   bool
	once    bool
	ttl     int
	hand    int // the TTL of a lease that was granted by message, until the owner confirms it
	phase   int // the fence of the phase in which the owner believes to be a reader; 0: none
}

const (
	noInbox   = -1
	blockOf   = 4 // number of fences that every writer reserves
	eachGrant = 1000
	queueLife = 3
	noteLife  = 5
	doneLife  = 4
)

// answer is the answer of a step.
type answer struct {
	State  store.State
	Fence  int // the fence, if granted
	Writer bool
	Place  int // the place in the queue, if busy
	Left   int
	Holder int // the fence of the holder
	Next   *answer
}

// message is a message that a step sends to a process.
type message struct {
	process int
	kind    store.EventKind
	owner   string
	fence   int
	writer  bool
}

func newModel(without Rule) *model {
	return &model{without: without, stale: make(map[string]*part), notes: make(map[string]note), gone: make(map[int]bool)}
}

func (m *model) off(r Rule) bool { return m.without == r }

// pass advances the time by some units. It removes the lease and the queue when they have expired.
func (m *model) pass(units int) {
	m.now += units
	if m.lease != nil && m.lease.ends <= m.now {
		m.free()
	}
	if m.queueEnds <= m.now {
		m.queue = nil
	}
}

// free removes the lease. The parts of the lease stay until the next lease begins.
func (m *model) free() {
	if m.lease != nil && m.lease.kind == phase && m.off(NewPhase) {
		m.stale = m.lease.parts
	}
	m.lease = nil
}

func (m *model) mint() int {
	m.fence += eachGrant
	return m.fence
}

// put gives a free key to one owner.
func (m *model) put(c claim, ttl int) {
	block := blockOf
	if c.mode == locker.Shared {
		block = 1
	}
	m.lease = &lease{kind: alone, owner: c.owner, fence: m.mint(), block: block, ends: m.now + ttl}
}

func (m *model) holds(owner string) bool {
	return m.lease != nil && m.lease.kind == alone && m.lease.owner == owner
}

// reads reports whether the owner has a part of the present phase that has not expired.
func (m *model) reads(owner string) bool {
	if m.lease == nil || m.lease.kind != phase {
		return false
	}
	p := m.lease.parts[owner]
	return p != nil && (p.ends > m.now || m.off(OwnExpiry))
}

func (m *model) note(owner string) (n note, ok bool) {
	n, ok = m.notes[owner]
	return n, ok && n.ends > m.now
}

func (m *model) lengthen(ttl int) { m.lease.ends = max(m.lease.ends, m.now+ttl) }

func (m *model) acquire(c claim) answer {
	if n, ok := m.note(c.owner); ok {
		if n.revoked {
			return answer{State: store.Revoked}
		}
		if !m.off(Undo) {
			return answer{State: store.Undone}
		}
	}
	if c.once && m.done > m.now {
		return answer{State: store.Done}
	}
	if m.holds(c.owner) {
		m.confirm()
		m.lengthen(c.ttl)
		return m.granted()
	}
	isPhase := m.lease != nil && m.lease.kind == phase
	switch reader := c.mode == locker.Shared && !c.plain; {
	case m.lease == nil && (reader || !m.off(NoOvertaking)):
		if m.serve(c, false); m.reads(c.owner) || reader && m.isOpen() {
			return m.entered(c)
		}
		if m.lease != nil {
			break
		}
		if reader {
			m.open(nil)
			return m.entered(c)
		}
	case m.reads(c.owner): // the owner may be a writer that has become a reader by a downgrade, and whose old call runs late
		return m.entered(c)
	case isPhase && reader && (len(m.queue) == 0 || m.off(WaitBehindWriters)):
		return m.entered(c)
	case isPhase && reader && m.isOpen():
		m.admit(c.owner)
		return m.entered(c)
	}
	if m.lease == nil {
		m.leave(c.owner)
		m.put(c, c.ttl)
		return m.granted()
	}
	return m.busy(c)
}

// entered adds c to the readers, or extends its part.
func (m *model) entered(c claim) answer {
	m.enter(c, c.ttl)
	a := m.granted()
	a.Writer = m.writerWaits()
	return a
}

func (m *model) granted() answer { return answer{State: store.Granted, Fence: m.lease.fence} }

func (m *model) busy(c claim) answer {
	a := answer{State: store.Busy, Left: m.lease.ends - m.now}
	if m.lease.kind != foreign {
		a.Holder = m.lease.fence
	}
	if c.queue {
		m.join(c)
	}
	a.Place = m.placeOf(c.owner)
	if c.queue && !c.plain && a.Place == 1 && c.mode == locker.Exclusive && m.lease.kind == phase {
		m.announce()
	}
	return a
}

// renew renews a lease. If the owner got the key by hand-off, the renewal is also the
// confirmation.
func (m *model) renew(c claim, ttl int) answer {
	if m.holds(c.owner) {
		m.confirm()
		m.lengthen(ttl)
		return answer{State: store.Granted}
	}
	if m.lease == nil || m.lease.kind != phase || c.plain || c.phase == 0 || c.phase != m.lease.fence && !m.off(ComparePhase) {
		return m.notOurs(c)
	}
	p := m.lease.parts[c.owner]
	if p == nil || p.ends <= m.now && !m.off(NoRevival) && !m.off(OwnExpiry) {
		return m.notOurs(c)
	}
	if p.ends < m.now+ttl || m.off(OnlyLengthen) {
		p.ends = m.now + ttl
	}
	m.lengthen(ttl)
	return answer{State: store.Granted, Writer: m.writerWaits()}
}

func (m *model) notOurs(c claim) answer {
	if m.revoked(c) {
		return answer{State: store.Revoked}
	}
	return answer{State: store.NotOurs}
}

// revoked reports whether the owner's lease, or the phase in which the owner reads, was revoked.
func (m *model) revoked(c claim) bool {
	if n, ok := m.note(c.owner); ok && n.revoked {
		return true
	}
	n, ok := m.note(phaseNote(c.phase))
	return ok && n.revoked && !c.plain
}

func phaseNote(fence int) string { return fmt.Sprint("phase ", fence) }

// info is the result of an inspection.
type info struct {
	Held, Kept, Foreign, Shared bool
	Fence, Left                 int
	Waiters, Readers            int
}

func (m *model) inspect() info {
	i := info{Waiters: m.waiters()}
	l := m.lease
	if l == nil {
		return i
	}
	i.Held, i.Kept, i.Foreign, i.Shared, i.Left = true, l.kind == kept, l.kind == foreign, l.kind == phase, l.ends-m.now
	if l.kind != foreign {
		i.Fence = l.fence
	}
	for _, p := range l.parts {
		if p.ends > m.now {
			i.Readers += p.count
		}
	}
	return i
}

// occupy makes another program take the key if it is free. The program does not use the queue.
func (m *model) occupy(ttl int) bool {
	if m.lease != nil {
		return false
	}
	m.lease = &lease{kind: foreign, ends: m.now + ttl}
	return true
}

// lose removes the lease, as an eviction does. The step evict removes only the lease's readers.
func (m *model) lose() { m.free() }

func (m *model) evict() {
	if m.lease != nil && m.lease.kind == phase {
		m.lease.parts = make(map[string]*part)
	}
}

func (m *model) start(int) {}

func (m *model) kill(process int) { m.gone[process] = true }

func (m *model) indexOf(owner string) int {
	return slices.IndexFunc(m.queue, func(p place) bool { return p.owner == owner })
}
