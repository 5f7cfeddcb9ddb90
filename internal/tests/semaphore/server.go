package semaphore

import (
	"maps"
	"math"
	"slices"
)

// These times are in µs.
const (
	milli  = int64(1000)
	second = 1000 * milli
)

// server is one Redis node with one key. Its steps do the same as the scripts.
type server struct {
	omitted    Rule // the rule that it leaves out; 0: none
	now        int64
	send       func(m message)
	dead       map[int]bool // the processes that were killed
	lease      holder
	permits    map[string]*permit
	lostP      bool // P was evicted in this epoch
	ends       int64
	queue      []*entry
	asked      int64            // when a waiter last asked; the queue expires 60 s later
	tombstones map[string]int64 // for each token with a tombstone: the end of the tombstone
	counter    int64
	head       string
	headSeenAt int64
}

// holder is the value of L.
type holder struct {
	kind kind
	ends int64
}

type kind int

const (
	free kind = iota
	shield
	foreign
)

// permit has the units that one token holds.
type permit struct {
	claim
	ends   int64
	fence  int64
	handed bool
}

// claim is the request of one token for units.
type claim struct {
	token  string
	proc   int
	weight int
	limit  int
	ttl    int64
	hand   int64 // how long the token may keep units that came by hand-off and are not confirmed
	deaf   bool  // the token receives no messages
}

// entry is a waiter.
type entry struct {
	claim
	hadTurn bool // the waiter had units already, but another program then locked the key
}

// answer is the reply of a step.
type answer struct {
	granted, busy, undone, ours bool
	fence, remaining            int64
	place                       int
}

// blockOf is the number of fences that a permit reserves for the callers of its process.
const blockOf = 4

// mostServed is the largest number of waiters that one step serves.
const mostServed = 64

// message tells a process that its token was granted units.
type message struct {
	token string
	fence int64
}

func newServer(omitted Rule, send func(m message)) *server {
	return &server{
		omitted: omitted, now: 1_000_000 * second, send: send, dead: make(map[int]bool), tombstones: make(map[string]int64),
		permits: make(map[string]*permit),
	}
}

func (s *server) omits(r Rule) bool { return s.omitted == r }

// expire removes expired keys, as the server does before each step.
func (s *server) expire() {
	if s.lease.kind != free && s.lease.ends <= s.now {
		s.lease = holder{}
		if s.omits(OutliveL) {
			s.forget()
		}
	}
	if len(s.permits) > 0 && s.ends+60*second <= s.now {
		s.forget()
	}
	if len(s.queue) > 0 && s.asked+60*second <= s.now {
		s.queue = nil
	}
}

func (s *server) forget() { s.permits, s.lostP, s.head = make(map[string]*permit), false, "" }

// mayGrant reports whether the server may grant permits now.
func (s *server) mayGrant() bool {
	s.expire()
	broken := s.lostP && !s.omits(SameSize)
	switch {
	case s.lease.kind == foreign, s.lease.kind == shield && broken:
		return false
	case s.lease.kind == free && (broken || s.omits(PermitsAreTrue)):
		s.forget()
	}
	return true
}

func (s *server) used() (used, limit int) {
	limit = math.MaxInt
	for _, p := range s.permits {
		used += p.weight
		limit = min(limit, p.limit)
	}
	return used, limit
}

func (s *server) fits(c claim) bool {
	used, limit := s.used()
	if s.omits(SmallestLimit) {
		limit = c.limit
	}
	return used+c.weight <= min(c.limit, limit)
}

func (s *server) reap(now int64) {
	for _, token := range slices.Sorted(maps.Keys(s.permits)) {
		p := s.permits[token]
		if p.ends > now {
			continue
		}
		delete(s.permits, token)
		if p.handed && !s.omits(LapsedLoses) {
			s.drop(p.claim)
		}
	}
	s.settle()
}

// drop removes the waiter c, which does not react. It also removes all other waiters of its
// process that get messages.
func (s *server) drop(c claim) {
	s.queue = slices.DeleteFunc(s.queue, func(e *entry) bool {
		return e.token == c.token || e.proc == c.proc && !e.deaf && !c.deaf
	})
}

func (s *server) settle() {
	if len(s.permits) == 0 {
		s.forget()
		if s.lease.kind == shield {
			s.lease = holder{}
		}
		s.head = ""
		return
	}
	s.ends = 0
	for _, p := range s.permits {
		s.ends = max(s.ends, p.ends)
	}
	if s.lease.kind != foreign {
		s.lease = holder{shield, s.ends}
	}
}

func (s *server) addPermit(c claim, life int64, handed bool) *permit {
	s.counter = max(s.counter+1, s.now)
	p := &permit{claim: c, ends: s.now + life, fence: s.counter, handed: handed}
	s.counter += blockOf - 1
	s.permits[c.token] = p
	s.settle()
	return p
}

// serve grants units to the waiters, in the order of the queue. The token own belongs to the
// caller of this step, so this caller gets its units by the answer, without a message.
func (s *server) serve(own string, c claim) {
	served := 0
	for len(s.queue) > 0 {
		e := s.queue[0]
		fits := s.fits(e.claim)
		if e.token != own && (fits || !s.omits(LivingHead)) && !e.deaf && s.dead[e.proc] {
			s.drop(e.claim)
			continue
		}
		if !fits {
			if used, limit := s.used(); used < limit && !s.watchHead(e, own) {
				s.drop(e.claim)
				continue
			}
			break
		}
		s.queue = s.queue[1:]
		if e.token == own {
			s.addPermit(c, c.ttl, false)
			continue
		}
		p := s.addPermit(e.claim, e.hand, true)
		if !e.deaf {
			s.send(message{token: e.token, fence: p.fence})
		}
		if served++; served >= mostServed || s.omits(ServeAll) {
			break
		}
	}
}

// watchHead is called when units are free, but too few for e, the first waiter. It reports
// whether e may keep its place: a waiter that has not asked for 3 s after a message loses its
// place. The parameter own is the token of the caller of this step.
func (s *server) watchHead(e *entry, own string) bool {
	if s.omits(SeenHead) {
		return true
	}
	if e.token != own && s.head == e.token {
		return s.now-s.headSeenAt <= 3*second
	}
	s.head, s.headSeenAt = e.token, s.now
	return true
}

func (s *server) earliest() int64 {
	first := int64(math.MaxInt64)
	for _, p := range s.permits {
		first = min(first, p.ends)
	}
	if len(s.permits) == 0 {
		return milli
	}
	return max(first-s.now, milli)
}

func (s *server) acquire(c claim, waits bool) answer {
	if s.tombstones[c.token] > s.now && !s.omits(Tombstone) {
		return answer{undone: true}
	}
	open, again := s.mayGrant(), false
	if p := s.permits[c.token]; p != nil && open {
		p.handed, p.ends = false, max(p.ends, s.now+c.ttl)
		s.settle()
		return answer{granted: true, fence: p.fence}
	} else if p != nil && s.lease.kind == foreign {
		delete(s.permits, c.token)
		again = true
	}
	if open {
		s.reap(s.now)
		if len(s.queue) > 0 && !s.omits(NoOvertaking) {
			s.serve(c.token, c)
		}
		if s.permits[c.token] == nil && s.fits(c) && (len(s.queue) == 0 || s.omits(NoOvertaking)) {
			s.queue = slices.DeleteFunc(s.queue, func(e *entry) bool { return e.token == c.token })
			s.addPermit(c, c.ttl, false)
		}
		if p := s.permits[c.token]; p != nil {
			return answer{granted: true, fence: p.fence}
		}
	}
	a := answer{busy: true, remaining: s.earliest()}
	if used, limit := s.used(); s.head != "" && s.head != c.token && used < limit && !s.omits(SeenHead) {
		// The caller must ask again when the first waiter's time to react is over.
		a.remaining = min(a.remaining, max(s.headSeenAt+3001*milli-s.now, milli))
	}
	if s.lease.kind == foreign || !open {
		a.remaining = max(s.lease.ends-s.now, milli)
	}
	if waits {
		s.asked = s.now
		a.place = s.enqueue(c, again)
	}
	return a
}

// enqueue puts c into the queue, and returns its place. If hadTurn is true, the token had units
// before another program locked the key, so c goes to the first place. Several such waiters are
// sorted by their tokens.
func (s *server) enqueue(c claim, hadTurn bool) int {
	if hadTurn {
		s.queue = slices.DeleteFunc(s.queue, func(e *entry) bool { return e.token == c.token })
		at := 0
		for at < len(s.queue) && s.queue[at].hadTurn && s.queue[at].token < c.token {
			at++
		}
		s.queue = slices.Insert(s.queue, at, &entry{c, true})
		return 1
	}
	at := slices.IndexFunc(s.queue, func(e *entry) bool { return e.token == c.token })
	if at < 0 {
		s.queue = append(s.queue, &entry{claim: c})
		at = len(s.queue) - 1
	}
	return at + 1
}

func (s *server) release(c claim, undo bool) answer {
	open := s.mayGrant()
	if undo {
		s.tombstones[c.token] = s.now + 60*second
	}
	a := answer{}
	if p := s.permits[c.token]; p != nil && (open || s.lease.kind == foreign) {
		delete(s.permits, c.token)
		a.ours = open && p.ends > s.now
		s.settle()
	}
	waited := len(s.queue)
	s.queue = slices.DeleteFunc(s.queue, func(e *entry) bool { return e.token == c.token })
	left := len(s.queue) < waited
	if open && (!left || !s.omits(LeaverServes)) {
		s.reap(s.now)
		s.serve("", claim{})
	}
	return a
}

func (s *server) renew(c claim, ttl int64) answer {
	s.expire()
	p := s.permits[c.token]
	if p == nil || s.lease.kind == foreign || s.lostP && !s.omits(SameSize) {
		return answer{}
	}
	if p.handed = false; s.omits(OnlyLengthen) {
		p.ends = s.now + ttl
	} else {
		p.ends = max(p.ends, s.now+ttl)
	}
	s.settle()
	return answer{ours: true}
}
