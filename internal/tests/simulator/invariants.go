package simulator

import (
	"fmt"
	"slices"
	"time"
)

// Invariant is a property that must always hold.
type Invariant string

// The invariants. A lease of a process begins when a worker learns of its grant. It ends when the
// worker releases it, when the process learns of its loss, or at its deadline by the clock of the
// process.
const (
	Exclusion Invariant = "I1: no two leases overlap in true time, unless data or the server's clock changed during one of the leases"
	Fences    Invariant = "I2: fences grow with every grant, and the lease on the server has the fence of its holder"
	Waits     Invariant = "I3: every wait ends, and no wait is longer than the bound"
	Order     Invariant = "I4: first come, first served"
	Rest      Invariant = "I5: nothing is left behind"
	Releases  Invariant = "I6: a release frees no lease of another token"
	Truth     Invariant = "I7: no reply states that a released lease was lost, or that a token was undone without an undo"
)

// Violation describes a broken invariant.
type Violation struct {
	Invariant Invariant
	At        time.Duration
	Key       int
	Text      string
	Trace     string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s: key %d at %v: %s", v.Invariant, v.Key, v.At, v.Text)
}

func (w *world) violate(i Invariant, key int, format string, args ...any) {
	if len(w.violations) == 0 {
		w.violations = append(w.violations, Violation{i, w.now, key, fmt.Sprintf(format, args...), w.traces[key].String()})
	}
}

// book is the complete history of a key.
type book struct {
	beliefs []*belief
	waiters []*waiter
	used    map[uint64]token
	fence   uint64        // the largest fence of a holder
	minted  uint64        // the last fence that the server reserved
	freeAt  time.Duration // when the last lease of a process ended, in true time
}

// belief is a lease as its owner sees it: from the time when the owner learns of the grant
// until the deadline by the owner's clock.
type belief struct {
	p        *process
	token    token
	deadline time.Duration // the deadline, by the owner's clock
	granted  time.Duration // when the server granted the lease, in true time
	fence    uint64
}

// truth has facts about a token that its process cannot know, but the simulation knows.
type truth struct {
	granted  time.Duration // when the server gave the token the lease, in true time
	ticket   micros        // 0: the token was never in the queue
	queuedAt time.Duration
	handed   bool // the token got the lease from the queue, by message
	freed    bool // a release of this token has freed the lease
	belief   *belief
	passed   map[*process]int // how often other tokens got the lease while this token waited
}

// recordGrant records that the server gives the lease to the token t. It checks the fence. The
// parameter handed reports whether the server sends the grant by message.
func (w *world) recordGrant(key int, t token, handed bool) {
	l := w.server.rows[key].lease
	b := &w.books[key]
	if l.fence <= b.minted {
		w.violate(Fences, key, "the server mints %d after %d", l.fence, b.minted)
	}
	b.minted = l.fence + uint64(l.block) - 1
	h := w.holds[t]
	w.note(key, nil, "gives the lease to", t, int64(l.fence))
	h.truth.granted, h.truth.handed, h.truth.freed = w.now, handed, false
	if h.state == finished && !h.p.dead && !w.lossy {
		w.violate(Rest, key, "t%d is given the lease after it was finished with", t)
	}
	if handed && w.ambush > 0 && !slices.ContainsFunc(w.procs, w.stopped) {
		lasts := w.ambush
		w.ambush = 0
		w.schedule(w.randomBetween(0, time.Millisecond), nil, func() { h.p.pause(lasts) })
	}
}

// recordQueued records that the token t has got a place in the queue, with the given ticket.
func (w *world) recordQueued(key int, t token, ticket micros) {
	h := w.holds[t]
	h.truth.ticket, h.truth.queuedAt, h.truth.passed = ticket, w.now, nil
	w.note(key, nil, "queues", t, 0)
	if h.state == finished && !h.p.dead && !w.lossy {
		w.violate(Rest, key, "t%d is queued after it was finished with", t)
	}
}

// recordNewFence records that the server has given the lease l another fence for the same
// owner.
func (w *world) recordNewFence(key int, l lease) {
	w.books[key].minted = l.fence + uint64(l.block) - 1
	if b := w.holds[l.owner].truth.belief; b != nil && w.holds[l.owner].state == held && b.fence < l.fence {
		w.violate(Fences, key, "t%d holds with fence %d, and the server has %d", l.owner, b.fence, l.fence)
	}
}

// recordFreed records that a release with the token t has freed a lease. The owner of this lease
// must be t, too.
func (w *world) recordFreed(key int, t, owner token) {
	w.holds[t].truth.freed = true
	if owner != t {
		w.violate(Releases, key, "the release of t%d frees the lease of t%d", t, owner)
	}
}

// recordLease records that h begins to use its lease, and checks all invariants of a new lease.
func (w *world) recordLease(h *hold) {
	w.tally.Grants++
	if h.used > 0 {
		w.tally.Local++
	}
	b := &belief{p: h.p, token: h.token, deadline: h.deadline, granted: h.truth.granted, fence: h.fence + uint64(h.used)}
	h.truth.belief = b
	if h.truth.granted == 0 {
		w.violate(Exclusion, h.key, "t%d was told of a lease that the server never gave it", h.token)
	}
	w.addBelief(h.key, b)
	w.checkFence(h, b)
	w.checkWait(h)
	w.checkOrder(h)
}

func (w *world) recordForeignLease(key int, p *process, t token, deadline time.Duration) *belief {
	b := &belief{p: p, token: t, deadline: deadline, granted: w.now}
	w.addBelief(key, b)
	return b
}

func (w *world) addBelief(key int, b *belief) {
	w.checkExclusion(key, b)
	w.books[key].beliefs = append(w.books[key].beliefs, b)
}

// recordDeadline records that the deadline of the lease of h has moved.
func (w *world) recordDeadline(h *hold) {
	if b := h.truth.belief; b != nil {
		b.deadline = h.deadline
		w.checkExclusion(h.key, b)
	}
}

func (w *world) recordEnd(h *hold) {
	if b := h.truth.belief; b != nil {
		h.truth.belief = nil
		w.removeBelief(h.key, b)
	}
}

func (w *world) removeBelief(key int, b *belief) {
	k := &w.books[key]
	k.beliefs = slices.DeleteFunc(k.beliefs, func(o *belief) bool { return o == b })
	k.freeAt = max(k.freeAt, min(w.now, b.p.trueAt(b.deadline)))
}

// recordDeath removes the leases and the waits of p, a process that was killed, because a dead
// process breaks no invariant.
func (w *world) recordDeath(p *process) {
	for key := range w.books {
		k := &w.books[key]
		k.beliefs = slices.DeleteFunc(k.beliefs, func(b *belief) bool {
			if b.p == p {
				k.freeAt = w.now
			}
			return b.p == p
		})
		k.waiters = slices.DeleteFunc(k.waiters, func(wt *waiter) bool { return wt.room.p == p })
	}
}

// excused reports whether the lease of b may overlap another lease without a violation. The
// result is true if the server has lost its data since the grant, or if the clock of the server
// has stepped.
func (w *world) excused(b *belief) bool { return w.ClockSteps || b.granted <= w.disturbedAt }

func (w *world) checkExclusion(key int, b *belief) {
	k := &w.books[key]
	for _, o := range k.beliefs {
		if o != b && o.p.trueAt(o.deadline) > w.now && !w.excused(o) && !w.excused(b) {
			w.violate(Exclusion, key, "p%d has it as t%d with fence %d, and p%d as t%d with fence %d for %v more",
				b.p.id, b.token, b.fence, o.p.id, o.token, o.fence, o.p.trueAt(o.deadline)-w.now)
		}
	}
	k.beliefs = slices.DeleteFunc(k.beliefs, func(o *belief) bool {
		gone := o != b && o.p.trueAt(o.deadline) <= w.now
		if gone {
			k.freeAt = max(k.freeAt, o.p.trueAt(o.deadline))
		}
		return gone
	})
}

func (w *world) checkFence(h *hold, b *belief) {
	k := &w.books[h.key]
	if k.used == nil {
		k.used = make(map[uint64]token)
	}
	if other, ok := k.used[b.fence]; ok {
		w.violate(Fences, h.key, "t%d and t%d both have fence %d", other, h.token, b.fence)
	}
	k.used[b.fence] = h.token
	if b.fence < k.fence && !w.excused(b) {
		w.violate(Fences, h.key, "t%d has fence %d after %d was had", h.token, b.fence, k.fence)
	}
	k.fence = max(k.fence, b.fence)
	r := &w.server.rows[h.key]
	if l := r.lease; l.owner == h.token && w.omitted != StayInBlock && (b.fence < l.fence || b.fence >= l.fence+uint64(l.block)) {
		w.violate(Fences, h.key, "t%d holds with fence %d, and the server has %d…%d", h.token, b.fence, l.fence, l.fence+uint64(l.block)-1)
	}
}

// recordWait records that the wait of wt begins, and recordWaitEnd records that this wait has
// ended.
func (w *world) recordWait(key int, wt *waiter) {
	w.books[key].waiters = append(w.books[key].waiters, wt)
}

func (w *world) recordWaitEnd(key int, wt *waiter) {
	k := &w.books[key]
	k.waiters = slices.DeleteFunc(k.waiters, func(o *waiter) bool { return o == wt })
	if w.MaxWait > 0 && !w.stopped(wt.room.p) && w.now-max(wt.startedAt, wt.room.p.wokeAt) > w.MaxWait {
		w.violate(Waits, key, "p%d waited for %v", wt.room.p.id, w.now-wt.startedAt)
	}
}

func (w *world) stopped(p *process) bool { return p.dead || p.asleep }

// longestWait returns the start of the longest present wait for a key, and the process that
// waits. It returns -1 if no process waits. Stopped processes do not count. The wait of a
// process that was stopped counts only from the time when the process continued.
func (w *world) longestWait(key int) (since time.Duration, p *process) {
	since = -1
	for _, wt := range w.books[key].waiters {
		if began := max(wt.startedAt, wt.room.p.wokeAt); !w.stopped(wt.room.p) && (since < 0 || began < since) {
			since, p = began, wt.room.p
		}
	}
	return since, p
}

// checkWait checks that before the lease of h, the key was not free for too long while a
// process waited.
func (w *world) checkWait(h *hold) {
	k := &w.books[h.key]
	if since, _ := w.longestWait(h.key); w.MaxIdle > 0 && since >= 0 && w.now-max(since, k.freeAt) > w.MaxIdle {
		w.violate(Waits, h.key, "nobody had the key for %v, while somebody waited", w.now-max(since, k.freeAt))
	}
}

// checkWaits checks that no present wait is too long. It calls itself again every 500 ms.
func (w *world) checkWaits() {
	for key := range w.books {
		since, p := w.longestWait(key)
		if since < 0 {
			continue
		}
		if w.MaxWait > 0 && w.now-since > w.MaxWait {
			w.violate(Waits, key, "p%d has waited for %v", p.id, w.now-since)
		}
		if w.now > w.faultsEnd+w.settle()-time.Second {
			w.violate(Waits, key, "p%d still waits %v after the last fault", p.id, w.now-w.faultsEnd)
		}
	}
	if w.now < w.Length || w.anybodyWaits() {
		w.schedule(500*time.Millisecond, nil, w.checkWaits)
	}
}

func (w *world) anybodyWaits() bool {
	return slices.ContainsFunc(w.books, func(b book) bool { return len(b.waiters) > 0 })
}

// checkOrder checks that no token with an earlier ticket still waits when h gets the lease, and
// that no process gets the lease twice while a token of another process waits.
func (w *world) checkOrder(h *hold) {
	if !w.Ordered || h.used > 0 {
		return
	}
	for _, p := range w.procs {
		for _, o := range p.seek {
			if o == h || o.key != h.key || o.truth.ticket == 0 || p.dead || o.truth.queuedAt >= h.truth.granted {
				continue
			}
			if h.truth.ticket == 0 || o.truth.ticket < h.truth.ticket {
				w.violate(Order, h.key, "t%d of p%d is served before t%d of p%d, which has waited for %v",
					h.token, h.p.id, o.token, p.id, w.now-o.truth.queuedAt)
			}
			if o.truth.passed == nil {
				o.truth.passed = make(map[*process]int)
			}
			if h.room.alone || p == h.p {
				continue
			}
			if o.truth.passed[h.p]++; o.truth.passed[h.p] > 1 {
				w.violate(Order, h.key, "p%d had two turns while t%d of p%d waited", h.p.id, o.token, p.id)
			}
		}
	}
}

// checkLossReply checks a reply by which the server reports that h does not hold the lease. The
// reply is wrong if a release of h itself has freed the lease.
func (w *world) checkLossReply(h *hold) {
	if h.truth.freed && !w.lossy {
		w.violate(Truth, h.key, "a reply states that the lease of t%d was lost, but its own release ended the lease", h.token)
	}
}

// checkRest checks at the end of the run that no lease and no queue entry of a living process is
// left on the server.
func (w *world) checkRest() {
	for key := range w.server.rows {
		if since, p := w.longestWait(key); since >= 0 {
			w.violate(Waits, key, "p%d still waits at the end, since %v", p.id, since)
		}
		r := w.server.row(key)
		if w.server.hasLease(r) && !r.lease.foreign && !w.holds[r.lease.owner].p.dead {
			w.violate(Rest, key, "t%d still has the lease", r.lease.owner)
		}
		for _, e := range r.queue {
			if !e.inbox.owner.dead {
				w.violate(Rest, key, "t%d is still in the queue", e.token)
			}
		}
	}
}
