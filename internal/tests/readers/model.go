package readers

import (
	"fmt"
	"slices"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// model is one key with its readers and writers, without a network. Its time is counted in units,
// and advances only in the step pass. The model makes its own fences. The first fences of two
// successive grants differ by eachGrant.
type model struct {
	omitted Rule // the rule that is left out
	now     int

	lease     *lease // nil: the key is free
	stale     map[string]*part
	queue     []place
	queueEnds int
	notes     map[string]note
	doneUntil int // the time until which the done mark lasts
	fence     int // the fence of the last grant
	dead      map[int]bool
	messages  []message
}

// lease is the holder of the key.
type lease struct {
	kind  kind
	owner string // for the kind alone: the owner
	fence int
	block int
	ends  int
	parts map[string]*part // for the kind phase: what is stored about each reader
}

type kind int

const (
	alone kind = iota // one owner: a writer, or a reader that got the key from a Locker without readers
	phase             // readers
	// no owner: the holder has released the key, and KeepFor keeps it until the lease expires
	kept
	foreign // a lease of another library
)

// part is what the server stores about one reader of a phase: above all, when this reader's
// lease ends.
type part struct {
	process int
	ends    int
	// how often the server counts the reader: once, or more often without the rule
	// EntryPerToken
	count int
}

// place is a waiter in the queue. The field handed is true if the waiter was granted the key by
// message and has made no call since then.
type place struct {
	claim
	handed bool
}

// note is the mark that the server leaves for an owner or a phase after a revocation, or for an
// owner after an undo.
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
	phase   int // the fence of the phase in which the owner believes that it reads; 0: none
}

const (
	noInbox   = -1
	blockOf   = 4 // number of fences that every writer reserves
	eachGrant = 1000
	queueLife = 3
	noteLife  = 5
	doneLife  = 4
)

// answer is the reply to a step.
type answer struct {
	State  store.State
	Fence  int // the fence, for the state Granted
	Writer bool
	Place  int // the place in the queue, for the state Busy
	Left   int
	Holder int // the fence of the holder
}

// message is a message that a step sends to a process.
type message struct {
	process int
	kind    store.EventKind
	owner   string
	fence   int
	writer  bool
}

func newModel(omitted Rule) *model {
	return &model{omitted: omitted, stale: make(map[string]*part), notes: make(map[string]note), dead: make(map[int]bool)}
}

func (m *model) omits(r Rule) bool { return m.omitted == r }

// pass advances the time by some units. It removes the lease and the queue if they have expired.
func (m *model) pass(units int) {
	m.now += units
	if m.lease != nil && m.lease.ends <= m.now {
		m.free()
	}
	if m.queueEnds <= m.now {
		m.queue = nil
	}
}

// free removes the lease. Without the rule NewPhase, the readers of the ended phase still count
// in the next phase.
func (m *model) free() {
	if m.lease != nil && m.lease.kind == phase && m.omits(NewPhase) {
		m.stale = m.lease.parts
	}
	m.lease = nil
}

func (m *model) mint() int {
	m.fence += eachGrant
	return m.fence
}

// grantTo gives the free key to c alone, with the given TTL.
func (m *model) grantTo(c claim, ttl int) {
	block := blockOf
	if c.mode == locker.Shared {
		block = 1
	}
	m.lease = &lease{kind: alone, owner: c.owner, fence: m.mint(), block: block, ends: m.now + ttl}
}

func (m *model) holds(owner string) bool {
	return m.lease != nil && m.lease.kind == alone && m.lease.owner == owner
}

// reads reports whether the owner is a reader of the present phase whose lease has not expired.
func (m *model) reads(owner string) bool {
	if m.lease == nil || m.lease.kind != phase {
		return false
	}
	p := m.lease.parts[owner]
	return p != nil && (p.ends > m.now || m.omits(OwnExpiry))
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
		if !m.omits(Undo) {
			return answer{State: store.Undone}
		}
	}
	if c.once && m.doneUntil > m.now {
		return answer{State: store.Done}
	}
	if m.holds(c.owner) {
		m.confirm()
		m.lengthen(c.ttl)
		return m.grantReply()
	}
	isPhase := m.lease != nil && m.lease.kind == phase
	switch reader := c.mode == locker.Shared && !c.plain; {
	case m.lease == nil && (reader || !m.omits(NoOvertaking)):
		if m.serve(c, false); m.reads(c.owner) || reader && m.isOpen() {
			return m.enterAndReply(c)
		}
		if m.lease != nil {
			break
		}
		if reader {
			m.open(nil)
			return m.enterAndReply(c)
		}
	case m.reads(c.owner):
		return m.enterAndReply(c)
	case isPhase && reader && (len(m.queue) == 0 || m.omits(WaitBehindWriters)):
		return m.enterAndReply(c)
	case isPhase && reader && m.isOpen():
		m.admit(c.owner)
		return m.enterAndReply(c)
	}
	if m.lease == nil {
		m.leave(c.owner)
		m.grantTo(c, c.ttl)
		return m.grantReply()
	}
	return m.busyReply(c)
}

// enterAndReply adds c to the readers of the phase, or extends its part. It returns the reply.
func (m *model) enterAndReply(c claim) answer {
	m.enter(c, c.ttl)
	a := m.grantReply()
	a.Writer = m.writerWaits()
	return a
}

func (m *model) grantReply() answer { return answer{State: store.Granted, Fence: m.lease.fence} }

func (m *model) busyReply(c claim) answer {
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

// renew sets a new TTL for the lease of c. If the owner got the key by hand-off, the renewal also
// confirms the hand-off.
func (m *model) renew(c claim, ttl int) answer {
	if m.holds(c.owner) {
		m.confirm()
		m.lengthen(ttl)
		return answer{State: store.Granted}
	}
	if m.lease == nil || m.lease.kind != phase || c.plain || c.phase == 0 || c.phase != m.lease.fence && !m.omits(ComparePhase) {
		return m.notOurs(c)
	}
	p := m.lease.parts[c.owner]
	if p == nil || p.ends <= m.now && !m.omits(NoRevival) && !m.omits(OwnExpiry) {
		return m.notOurs(c)
	}
	if p.ends < m.now+ttl || m.omits(OnlyLengthen) {
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

// info is the state of the key that an inspection returns.
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

// evictLease removes the lease, as an eviction does.
func (m *model) evictLease() { m.free() }

// evictReaders removes what is stored about single readers, as an eviction does, but not the
// lease of the phase.
func (m *model) evictReaders() {
	if m.lease != nil && m.lease.kind == phase {
		m.lease.parts = make(map[string]*part)
	}
}

func (m *model) start(int) {}

func (m *model) kill(process int) { m.dead[process] = true }

func (m *model) indexOf(owner string) int {
	return slices.IndexFunc(m.queue, func(p place) bool { return p.owner == owner })
}
