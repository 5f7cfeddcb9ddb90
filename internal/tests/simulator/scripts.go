package simulator

import "time"

// state is the first word of a script's answer.
type state uint8

const (
	granted state = iota + 1
	busy
	undone
	released
	notOurs
	noMemory
)

var stateNames = [...]string{granted: "granted", busy: "busy", undone: "undone", released: "released", notOurs: "not ours", noMemory: "no memory"}

// reply is a script's answer.
type reply struct {
	state   state
	at      micros
	fence   uint64
	block   int
	left    time.Duration // how much time the lease of the present holder has left
	foreign bool
	place   int
	deaf    bool
	next    *reply // the reply to the next token that the release carries
}

// begin starts a script.
func (s *server) begin(key int) *row {
	s.wrote = false
	return s.row(key)
}

// acquire grants the lease to a token. If another token holds the lease, acquire returns the
// holder and queues the token.
func (s *server) acquire(key int, c claim) reply {
	r := s.begin(key)
	if s.tombstoned(c.token) {
		return reply{state: undone, at: s.time()}
	}
	return s.take(key, r, c)
}

// take does the work of acquire for a token without a tombstone.
func (s *server) take(key int, r *row, c claim) reply {
	if s.held(r) && s.owns(r, c.token) {
		s.lengthen(r, c.ttl)
		s.confirm(r)
		if s.w.without == Idempotent {
			r.lease.fence, r.lease.block = s.mint(c.block)
			s.w.reminted(key, r.lease)
		}
		return s.grant(r)
	}
	if !s.held(r) {
		if s.w.without != NoOvertaking && !s.hand(key, r, c.token) {
			return reply{state: noMemory}
		}
		if !s.held(r) {
			if s.refuses() {
				return reply{state: noMemory}
			}
			s.remove(r, c.token)
			s.set(key, c.token, c.block, c.ttl, false)
			return s.grant(r)
		}
	}
	if c.queue {
		if r.index(c.token) < 0 && s.refuses() {
			return reply{state: noMemory}
		}
		s.enqueue(key, c)
	}
	return reply{
		state: busy, at: s.time(), left: s.left(r), foreign: r.lease.foreign, place: r.place(c.token),
		deaf: c.queue && c.inbox != nil && c.inbox.listeners() == 0,
	}
}

func (s *server) grant(r *row) reply {
	return reply{state: granted, at: s.time(), fence: r.lease.fence, block: r.lease.block, left: s.left(r)}
}

func (s *server) lengthen(r *row, ttl time.Duration) {
	if ends := s.millis() + ttl.Milliseconds(); ends > r.lease.ends || s.w.without == OnlyLengthen {
		r.lease.ends = ends
	}
}

// hand gives a free lease to the first living waiter. If it reaches the token self, it stops,
// because this token takes the lease without a message. It returns false if the server's memory was
// full, so that the grant was refused.
func (s *server) hand(key int, r *row, self token) bool {
	for len(r.queue) > 0 {
		e := &r.queue[0]
		switch {
		case e.token == self:
			return true
		case e.handed: // its claim has ended without a confirmation
			s.w.note(key, nil, "dropped: never confirmed", e.token, 0)
			s.drop(r)
			continue
		case e.inbox != nil && e.inbox.listeners() == 0:
			s.w.note(key, nil, "dropped: nobody listens", e.token, 0)
			s.drop(r)
			continue
		}
		if s.w.without == WriteFirst && s.refuses() {
			fence := max(s.counter+1, uint64(s.time()))
			s.w.publish(key, e.inbox, message{kind: toldGranted, token: e.token, fence: fence, block: 1, claim: e.claim, at: s.time()})
			return false
		}
		given := *e
		if s.w.without == KeepHanded {
			s.remove(r, given.token)
		} else {
			e.handed = true
		}
		s.wrote = true // ZREM comes first, because it needs no memory
		s.set(key, given.token, given.block, given.claim, true)
		s.w.publish(key, given.inbox, message{
			kind: toldGranted, token: given.token, fence: r.lease.fence, block: r.lease.block, claim: given.claim, at: s.time(),
		})
		s.tellHead(key, r, given)
		return true
	}
	return true
}

// tellHead sends a message to the next process in the queue if it has waited for more than 500 ms.
// The message states how long the present claim lasts.
func (s *server) tellHead(key int, r *row, given entry) {
	for _, e := range r.queue {
		if e.inbox != given.inbox {
			if s.time()-e.ticket > microsOf(500*time.Millisecond) {
				s.w.publish(key, e.inbox, message{kind: toldHead, token: e.token, claim: given.claim, at: s.time()})
			}
			return
		}
	}
}

// release releases a lease or a place in the queue. The token next is put at the end of the queue.
// If the queue is empty, next gets the lease at once.
func (s *server) release(key int, t token, undo time.Duration, next *claim) reply {
	r := s.begin(key)
	ours := s.held(r) && s.owns(r, t)
	if ours {
		s.w.freed(key, t, r.lease.owner)
		r.lease = lease{}
		s.wrote = true
		s.confirm(r)
	}
	if undo > 0 {
		s.undone[t] = s.millis() + undo.Milliseconds()
	}
	answer := reply{state: notOurs, at: s.time()}
	if !ours {
		s.remove(r, t)
		if !s.held(r) {
			s.hand(key, r, 0) // the key may be free, and the waiter that leaves can no longer notice it
		}
		return answer
	}
	answer.state = released
	switch {
	case next == nil:
		s.hand(key, r, 0)
	case s.tombstoned(next.token) && s.w.without != RefuseNext:
		s.hand(key, r, 0)
		answer.next = &reply{state: undone, at: s.time()}
	default:
		answer.next = s.follow(key, r, *next)
	}
	return answer
}

// follow is the acquire that a release carries. If the release runs late, the token of this acquire
// may have sent its own acquire, and be in the queue already. Then the token gets a message like
// all other waiters, because its caller may not read the answer any more.
func (s *server) follow(key int, r *row, c claim) *reply {
	s.hand(key, r, 0)
	if s.held(r) && s.owns(r, c.token) && s.w.without == NextInLine {
		r.queue[0].handed = false // its answer is "busy", so the token waits
		return &reply{state: busy, at: s.time(), left: s.left(r), place: 1}
	}
	return new(s.take(key, r, c))
}

// renew lengthens a lease. It also confirms a hand-off.
func (s *server) renew(key int, t token, ttl time.Duration, handed bool) reply {
	r := s.begin(key)
	if !s.held(r) || !s.owns(r, t) {
		return reply{state: notOurs, at: s.time()}
	}
	s.lengthen(r, ttl)
	if handed {
		s.confirm(r)
	}
	return reply{state: granted, at: s.time()}
}

// setNX and delIf are the two commands of a foreign client.
func (s *server) setNX(key int, t token, ttl time.Duration) reply {
	r := s.begin(key)
	if s.held(r) {
		return reply{state: busy}
	}
	if s.refuses() {
		return reply{state: noMemory}
	}
	r.lease = lease{owner: t, ends: s.millis() + ttl.Milliseconds(), foreign: true}
	return reply{state: granted}
}

func (s *server) delIf(key int, t token) reply {
	r := s.begin(key)
	if !s.held(r) || r.lease.owner != t {
		return reply{state: notOurs}
	}
	r.lease = lease{}
	return reply{state: released}
}
