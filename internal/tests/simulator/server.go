package simulator

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// token names one hold. Token 0 belongs to no hold.
type token uint32

// micros is a time in µs, as the command TIME of the server returns it.
type micros int64

func (m micros) millis() int64 { return int64(m) / 1000 }

func microsOf(d time.Duration) micros { return micros(d / time.Microsecond) }

// server is one Redis node: its clock and its keys. Its scripts are in scripts.go.
type server struct {
	w          *world
	step       time.Duration // the sum of all steps of the server's clock
	counter    uint64        // the last fence
	rows       []row         // by key
	tombstones map[token]int64
	full       bool // the memory is full: the server refuses a script whose first write needs memory
	isDown     bool
	restarts   int // number of restarts; no connection survives a restart

	wrote bool // the running script has written something
}

// row has what the server stores for one key: the lease and the queue.
type row struct {
	lease lease
	queue []entry // sorted by score: first the entry that was handed the lease, then by ticket
	ends  int64   // when the queue expires
	last  micros  // the last ticket
}

// lease is the value of L. Its expiry is in whole milliseconds, as in Redis.
type lease struct {
	owner   token
	fence   uint64
	block   int
	ends    int64
	foreign bool
}

// entry is a member of Q.
type entry struct {
	token  token
	inbox  *inbox
	claim  time.Duration
	block  int
	ticket micros
	handed bool // the waiter was handed the lease and has not confirmed it
}

// claim has the arguments of an acquire.
type claim struct {
	token token
	ttl   time.Duration
	block int
	queue bool
	inbox *inbox
	hand  time.Duration
}

// clockStart is the time with which the server's clock begins. It is a large number, like the
// microseconds since 1970, but has fewer digits.
const clockStart = 1_000_000_000

func (s *server) time() micros { return clockStart + microsOf(s.w.now+s.step) }

func (s *server) millis() int64 { return s.time().millis() }

// hasLease reports whether L exists in the row r. If L has expired, hasLease removes it first. As
// in Redis, L has expired when the clock shows a later millisecond than the expiry.
func (s *server) hasLease(r *row) bool {
	if r.lease.owner != 0 && s.millis() > r.lease.ends {
		r.lease = lease{}
	}
	return r.lease.owner != 0
}

// remaining returns how long the lease in r still lasts, as PTTL does.
func (s *server) remaining(r *row) time.Duration {
	return time.Duration(r.lease.ends-s.millis()) * time.Millisecond
}

// owns reports whether the token t owns the lease in the row r.
func (s *server) owns(r *row, t token) bool {
	if r.lease.foreign {
		return false
	}
	if s.w.omitted == WholeToken {
		return strings.HasPrefix(strconv.Itoa(int(r.lease.owner)), strconv.Itoa(int(t)))
	}
	return r.lease.owner == t
}

func (s *server) tombstoned(t token) bool {
	ends, ok := s.tombstones[t]
	return ok && s.millis() <= ends
}

// refuses reports whether the server refuses a write that needs memory: its memory is full, and
// the running script has written nothing yet.
func (s *server) refuses() bool { return s.full && !s.wrote }

// mint reserves n fences, and returns the first fence and the number of reserved fences. The
// fences are larger than all earlier fences, and not smaller than the clock. If n fences would
// reach more than 100 ms beyond the clock, mint reserves only one fence.
func (s *server) mint(n int) (fence uint64, block int) {
	now := uint64(s.time())
	fence = max(s.counter+1, now)
	if fence+uint64(n)-1 > now+100_000 {
		n = 1
	}
	s.counter = fence + uint64(n) - 1
	return fence, n
}

// setLease writes L for the token t, with n fences and the TTL px. The parameter handed reports
// whether the server sends the grant by message.
func (s *server) setLease(key int, t token, n int, px time.Duration, handed bool) {
	r := &s.rows[key]
	r.lease = lease{owner: t, ends: s.millis() + px.Milliseconds()}
	r.lease.fence, r.lease.block = s.mint(n)
	s.wrote = true
	s.w.recordGrant(key, t, handed)
}

// enqueue adds an entry for c with the next ticket, as ZADD NX does.
func (s *server) enqueue(key int, c claim) {
	r := &s.rows[key]
	r.ends = s.millis() + max(time.Minute, c.ttl).Milliseconds()
	if r.index(c.token) >= 0 {
		return
	}
	s.wrote = true
	r.last = max(r.last+1, s.time())
	r.queue = append(r.queue, entry{token: c.token, inbox: c.inbox, claim: c.hand, block: c.block, ticket: r.last})
	s.w.recordQueued(key, c.token, r.last)
}

func (r *row) index(t token) int {
	return slices.IndexFunc(r.queue, func(e entry) bool { return e.token == t })
}

// place returns the place of a token in the queue, counted from 1. If the token is not in the
// queue, place returns the place that it would get. It does not count an entry that was handed the
// lease.
func (r *row) place(t token) int {
	place := 1
	for _, e := range r.queue {
		if e.token == t {
			break
		}
		if !e.handed {
			place++
		}
	}
	return place
}

// remove removes the entry of the token t from the queue, as ZREM does. It reports whether there
// was one.
func (s *server) remove(r *row, t token) bool {
	i := r.index(t)
	if i < 0 {
		return false
	}
	s.wrote = true
	r.queue = slices.Delete(r.queue, i, i+1)
	return true
}

// confirm removes the queue entry of the token that was handed the lease, because its process
// has confirmed the hand-off or released the lease.
func (s *server) confirm(r *row) {
	if len(r.queue) > 0 && r.queue[0].handed {
		s.wrote = true
		r.queue = slices.Delete(r.queue, 0, 1)
	}
}

// drop removes the first entry of the queue and all other entries with the same inbox, because
// their process is dead or stopped. If the first entry has no inbox, drop removes only this
// entry.
func (s *server) drop(r *row) {
	s.wrote = true
	head := r.queue[0]
	r.queue = slices.DeleteFunc(r.queue, func(e entry) bool {
		return e.token == head.token || head.inbox != nil && e.inbox == head.inbox
	})
}

// row returns the row of a key. If the key's queue has expired, row removes it first.
func (s *server) row(key int) *row {
	r := &s.rows[key]
	if len(r.queue) > 0 && s.millis() > r.ends {
		r.queue = nil
	}
	return r
}

// forget removes all data, as a restart without persistence does.
func (s *server) forget() {
	for i := range s.rows {
		s.rows[i] = row{}
	}
	s.tombstones = make(map[token]int64)
	s.counter = 0
}
