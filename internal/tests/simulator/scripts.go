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
	state     state
	at        micros
	fence     uint64
	block     int
	remaining time.Duration // how much time the lease of the present holder has left
	foreign   bool
	place     int
	deaf      bool
}

// beginScript starts a script on a key, and returns the row of this key.
func (s *server) beginScript(key int) *row {
	s.wrote = false
	return s.row(key)
}

// acquire grants the lease of a key to the token of c. If another token holds the lease, acquire
// puts the token of c into the queue, and replies "busy".
func (s *server) acquire(key int, c claim) reply {
	r := s.beginScript(key)
	if s.tombstoned(c.token) {
		return reply{state: undone, at: s.time()}
	}
	if s.hasLease(r) && s.owns(r, c.token) {
		s.lengthen(r, c.ttl)
		s.confirm(r)
		if s.w.omitted == Idempotent {
			r.lease.fence, r.lease.block = s.mint(c.block)
			s.w.recordNewFence(key, r.lease)
		}
		return s.grantReply(r)
	}
	if !s.hasLease(r) {
		if s.w.omitted != NoOvertaking && !s.handOff(key, r, c.token) {
			return reply{state: noMemory}
		}
		if !s.hasLease(r) {
			if s.refuses() {
				return reply{state: noMemory}
			}
			s.remove(r, c.token)
			s.setLease(key, c.token, c.block, c.ttl, false)
			return s.grantReply(r)
		}
	}
	if c.queue {
		if r.index(c.token) < 0 && s.refuses() {
			return reply{state: noMemory}
		}
		s.enqueue(key, c)
	}
	return reply{
		state: busy, at: s.time(), remaining: s.remaining(r), foreign: r.lease.foreign, place: r.place(c.token),
		deaf: c.queue && c.inbox != nil && c.inbox.listeners() == 0,
	}
}

func (s *server) grantReply(r *row) reply {
	return reply{state: granted, at: s.time(), fence: r.lease.fence, block: r.lease.block, remaining: s.remaining(r)}
}

func (s *server) lengthen(r *row, ttl time.Duration) {
	if ends := s.millis() + ttl.Milliseconds(); ends > r.lease.ends || s.w.omitted == OnlyLengthen {
		r.lease.ends = ends
	}
}

// handOff gives the free lease of a key to the first living waiter. If the token self is the
// first, handOff stops, because this token takes the lease without a message. It returns false if
// the server has refused the grant because its memory is full.
func (s *server) handOff(key int, r *row, self token) bool {
	for len(r.queue) > 0 {
		e := &r.queue[0]
		switch {
		case e.token == self:
			return true
		case e.handed: // the hand-off to e was never confirmed, and the lease has ended
			s.w.note(key, nil, "dropped: never confirmed", e.token, 0)
			s.drop(r)
			continue
		case e.inbox != nil && e.inbox.listeners() == 0:
			s.w.note(key, nil, "dropped: nobody listens", e.token, 0)
			s.drop(r)
			continue
		}
		if s.w.omitted == WriteFirst && s.refuses() {
			fence := max(s.counter+1, uint64(s.time()))
			s.w.publish(key, e.inbox, message{kind: messageGranted, token: e.token, fence: fence, block: 1, claim: e.claim, at: s.time()})
			return false
		}
		winner := *e
		if s.w.omitted == KeepHanded {
			s.remove(r, winner.token)
		} else {
			e.handed = true
		}
		s.wrote = true // ZREM comes first, because it needs no memory
		s.setLease(key, winner.token, winner.block, winner.claim, true)
		s.w.publish(key, winner.inbox, message{
			kind: messageGranted, token: winner.token, fence: r.lease.fence, block: r.lease.block, claim: winner.claim, at: s.time(),
		})
		s.tellHead(key, r, winner)
		return true
	}
	return true
}

// tellHead sends a message to the first waiter of another process than the winner, if this waiter
// has waited for more than 500 ms. The message states how long the claim of the winner lasts.
func (s *server) tellHead(key int, r *row, winner entry) {
	for _, e := range r.queue {
		if e.inbox != winner.inbox {
			if s.time()-e.ticket > microsOf(500*time.Millisecond) {
				s.w.publish(key, e.inbox, message{kind: messageHead, token: e.token, claim: winner.claim, at: s.time()})
			}
			return
		}
	}
}

// release gives up the lease or the queue entry of the token t. If undo is not 0, release also
// leaves a tombstone for the time undo.
func (s *server) release(key int, t token, undo time.Duration) reply {
	r := s.beginScript(key)
	ours := s.hasLease(r) && s.owns(r, t)
	if ours {
		s.w.recordFreed(key, t, r.lease.owner)
		r.lease = lease{}
		s.wrote = true
		s.confirm(r)
	}
	if undo > 0 {
		s.tombstones[t] = s.millis() + undo.Milliseconds()
	}
	if !ours {
		s.remove(r, t)
	}
	if !s.hasLease(r) { // also a waiter that leaves must hand a free key to the next waiter
		s.handOff(key, r, 0)
	}
	if ours {
		return reply{state: released, at: s.time()}
	}
	return reply{state: notOurs, at: s.time()}
}

// renew lengthens the lease of the token t to the given TTL. If handed is true, the lease came
// by hand-off, and renew also confirms this hand-off.
func (s *server) renew(key int, t token, ttl time.Duration, handed bool) reply {
	r := s.beginScript(key)
	if !s.hasLease(r) || !s.owns(r, t) {
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
	r := s.beginScript(key)
	if s.hasLease(r) {
		return reply{state: busy}
	}
	if s.refuses() {
		return reply{state: noMemory}
	}
	r.lease = lease{owner: t, ends: s.millis() + ttl.Milliseconds(), foreign: true}
	return reply{state: granted}
}

func (s *server) delIf(key int, t token) reply {
	r := s.beginScript(key)
	if !s.hasLease(r) || r.lease.owner != t {
		return reply{state: notOurs}
	}
	r.lease = lease{}
	return reply{state: released}
}
