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
	freeAt  time.Duration // when the last belief ended
}

// belief is a lease as its owner sees it.
type belief struct {
	p       *process
	token   token
	until   time.Duration // the deadline, by the owner's clock
	granted time.Duration // when the server granted it, in true time
	fence   uint64
}

// truth is what the observer of the simulation knows about a token.
type truth struct {
	granted  time.Duration // when the server gave it the lease, in true time
	ticket   micros        // 0: the token was never in the queue
	queuedAt time.Duration
	handed   bool // the token got the lease from the queue, by message
	freed    bool // a release of this token has freed the lease
	belief   *belief
	passed   map[*process]int // how often other tokens got the lease while this token waited
}

// granted is called when the server gives a token the lease.
func (w *world) granted(key int, t token, handed bool) {
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
		w.after(w.between(0, time.Millisecond), nil, func() { h.p.pause(lasts) })
	}
}

// queued is called when a token has got a place in the queue.
func (w *world) queued(key int, t token, ticket micros) {
	h := w.holds[t]
	h.truth.ticket, h.truth.queuedAt, h.truth.passed = ticket, w.now, nil
	w.note(key, nil, "queues", t, 0)
	if h.state == finished && !h.p.dead && !w.lossy {
		w.violate(Rest, key, "t%d is queued after it was finished with", t)
	}
}

// reminted is called when a lease gets another fence, although its owner stays the same.
func (w *world) reminted(key int, l lease) {
	w.books[key].minted = l.fence + uint64(l.block) - 1
	if b := w.holds[l.owner].truth.belief; b != nil && w.holds[l.owner].state == held && b.fence < l.fence {
		w.violate(Fences, key, "t%d holds with fence %d, and the server has %d", l.owner, b.fence, l.fence)
	}
}

// freed is called when a release of t has freed the lease of owner.
func (w *world) freed(key int, t, owner token) {
	w.holds[t].truth.freed = true
	if owner != t {
		w.violate(Releases, key, "the release of t%d frees the lease of t%d", t, owner)
	}
}

// believes is called when h begins to believe that it holds a lease.
func (w *world) believes(h *hold) {
	w.tally.Grants++
	if h.used > 0 {
		w.tally.Local++
	}
	b := &belief{p: h.p, token: h.token, until: h.deadline, granted: h.truth.granted, fence: h.fence + uint64(h.used)}
	h.truth.belief = b
	if h.truth.granted == 0 {
		w.violate(Exclusion, h.key, "t%d was told of a lease that the server never gave it", h.token)
	}
	w.begin(h.key, b)
	w.checkFence(h, b)
	w.checkWait(h)
	w.checkOrder(h)
}

func (w *world) foreignBelieves(key int, p *process, t token, until time.Duration) *belief {
	b := &belief{p: p, token: t, until: until, granted: w.now}
	w.begin(key, b)
	return b
}

func (w *world) begin(key int, b *belief) {
	w.checkExclusion(key, b)
	w.books[key].beliefs = append(w.books[key].beliefs, b)
}

// believesLonger is called when the deadline of a lease has moved.
func (w *world) believesLonger(h *hold) {
	if b := h.truth.belief; b != nil {
		b.until = h.deadline
		w.checkExclusion(h.key, b)
	}
}

func (w *world) believesNoMore(h *hold) {
	if b := h.truth.belief; b != nil {
		h.truth.belief = nil
		w.end(h.key, b)
	}
}

func (w *world) end(key int, b *belief) {
	k := &w.books[key]
	k.beliefs = slices.DeleteFunc(k.beliefs, func(o *belief) bool { return o == b })
	k.freeAt = max(k.freeAt, min(w.now, b.p.trueAt(b.until)))
}

// died ends all beliefs and all waits of a process that was killed.
func (w *world) died(p *process) {
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

// excused reports whether a lease may end early without a violation. A lease may end early if it
// was granted before the server lost its data, or before the server's clock stepped.
func (w *world) excused(b *belief) bool { return w.ClockSteps || b.granted <= w.upset }

func (w *world) checkExclusion(key int, b *belief) {
	k := &w.books[key]
	for _, o := range k.beliefs {
		if o != b && o.p.trueAt(o.until) > w.now && !w.excused(o) && !w.excused(b) {
			w.violate(Exclusion, key, "p%d has it as t%d with fence %d, and p%d as t%d with fence %d for %v more",
				b.p.id, b.token, b.fence, o.p.id, o.token, o.fence, o.p.trueAt(o.until)-w.now)
		}
	}
	k.beliefs = slices.DeleteFunc(k.beliefs, func(o *belief) bool {
		gone := o != b && o.p.trueAt(o.until) <= w.now
		if gone {
			k.freeAt = max(k.freeAt, o.p.trueAt(o.until))
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
	if l := r.lease; l.owner == h.token && w.without != StayInBlock && (b.fence < l.fence || b.fence >= l.fence+uint64(l.block)) {
		w.violate(Fences, h.key, "t%d holds with fence %d, and the server has %d…%d", h.token, b.fence, l.fence, l.fence+uint64(l.block)-1)
	}
}

// waits is called when a wait begins, and waitsNoMore when it ends.
func (w *world) waits(key int, wt *waiter) { w.books[key].waiters = append(w.books[key].waiters, wt) }

func (w *world) waitsNoMore(key int, wt *waiter) {
	k := &w.books[key]
	k.waiters = slices.DeleteFunc(k.waiters, func(o *waiter) bool { return o == wt })
	if w.MaxWait > 0 && !w.stopped(wt.room.p) && w.now-max(wt.since, wt.room.p.wokeAt) > w.MaxWait {
		w.violate(Waits, key, "p%d waited for %v", wt.room.p.id, w.now-wt.since)
	}
}

func (w *world) stopped(p *process) bool { return p.dead || p.asleep }

// waitingSince returns the start of the longest present wait, and the process that waits. Stopped
// processes do not count. For a process that was stopped, the wait starts when the process
// continues.
func (w *world) waitingSince(key int) (since time.Duration, p *process) {
	since = -1
	for _, wt := range w.books[key].waiters {
		if began := max(wt.since, wt.room.p.wokeAt); !w.stopped(wt.room.p) && (since < 0 || began < since) {
			since, p = began, wt.room.p
		}
	}
	return since, p
}

// checkWait checks that the key was not free for too long before a lease began.
func (w *world) checkWait(h *hold) {
	k := &w.books[h.key]
	if since, _ := w.waitingSince(h.key); w.MaxIdle > 0 && since >= 0 && w.now-max(since, k.freeAt) > w.MaxIdle {
		w.violate(Waits, h.key, "nobody had the key for %v, while somebody waited", w.now-max(since, k.freeAt))
	}
}

// inspect checks all waits from time to time.
func (w *world) inspect() {
	for key := range w.books {
		since, p := w.waitingSince(key)
		if since < 0 {
			continue
		}
		if w.MaxWait > 0 && w.now-since > w.MaxWait {
			w.violate(Waits, key, "p%d has waited for %v", p.id, w.now-since)
		}
		if w.now > w.quiet+w.settle()-time.Second {
			w.violate(Waits, key, "p%d still waits %v after the last fault", p.id, w.now-w.quiet)
		}
	}
	if w.now < w.Length || w.anybodyWaits() {
		w.after(500*time.Millisecond, nil, w.inspect)
	}
}

func (w *world) anybodyWaits() bool {
	return slices.ContainsFunc(w.books, func(b book) bool { return len(b.waiters) > 0 })
}

// checkOrder checks that a grant of the server has not overtaken a waiter whose turn was earlier.
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

// toldLost is called when a reply of the server states that a process does not hold its lease.
func (w *world) toldLost(h *hold) {
	if h.truth.freed && !w.lossy {
		w.violate(Truth, h.key, "a reply states that the lease of t%d was lost, but its own release ended the lease", h.token)
	}
}

// atRest checks that nothing is left behind on the server at the end of the run.
func (w *world) atRest() {
	for key := range w.server.rows {
		if since, p := w.waitingSince(key); since >= 0 {
			w.violate(Waits, key, "p%d still waits at the end, since %v", p.id, since)
		}
		r := w.server.row(key)
		if w.server.held(r) && !r.lease.foreign && !w.holds[r.lease.owner].p.dead {
			w.violate(Rest, key, "t%d still has the lease", r.lease.owner)
		}
		for _, e := range r.queue {
			if !e.inbox.owner.dead {
				w.violate(Rest, key, "t%d is still in the queue", e.token)
			}
		}
	}
}
