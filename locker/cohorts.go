package locker

import (
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// A cohort consists of the callers of this process that want one key on the same terms. One of
// these callers, the leader, asks the server or holds the lock. The others wait in the cohort, in
// order, and send nothing to the server (lock cohorting: Dice, Marathe and Shavit, PPoPP 2012).
// While a streak lasts, a hold that its user releases goes to the next caller, with the next fence
// of its block. The table shows the events of a cohort with waiters, and what follows:
//
//	release, streak not over  the next waiter gets the hold
//	release, streak over      the next waiter leads when the release has ended, or had an attempt
//	                          without an answer: its first question must not overtake the release
//	the hold is lost          the next waiter leads, with a token of its own
//	the leader gives up       the next waiter leads, with the leader's place in the server's queue;
//	or fails                  if the server cannot be reached, overdue waiters fail with the leader
//	the leader must wait,     the caller that came last is refused
//	WithMaxWaiters reached
//	a waiter gives up         it leaves; if its turn has come meanwhile, the turn is passed on
type cohort struct {
	terms   terms
	hold    *hold // nil while the leader asks the server
	waiting []*waiter

	open bool // hold is Shared, and more callers may use it
	// What a leader was told of another holder, or who had the last hold of this cohort; nil:
	// nothing. There may be many cohorts, and most need none.
	last *knownHolder
}

// A knownHolder is what a cohort knows of the holder for which its callers wait.
type knownHolder struct {
	known     bool // a holder was seen; the fields below, except failure, count only then
	holder    store.Holder
	received  time.Time // when holder.Left was true
	heldSince time.Time // when the holder got the key; zero: unknown
	ahead     int       // how many callers and other processes wait in front
	failure   error     // the error of the leader's last question
}

// A turn ends a waiter's wait in a cohort. It is a hold, a place, or an error: the waiter uses the
// hold, leads, or fails. Only the cohorts give turns, while they hold their mutex.
type turn struct {
	hold     *hold
	fence    uint64
	releaser Peer // the caller that handed hold over
	// streak is the number of this hand-off in the streak of hold, counted from 1. It is 0 when
	// readers share hold, because then the turn is no hand-off.
	streak int

	// place is the former leader's place in the server's queue. If hold, place and err are nil, the
	// waiter leads with a place of its own.
	place *place

	// err is set if WithMaxWaiters is exceeded. It is also set if the leader could not reach the
	// server and this waiter's time is over too.
	err error

	seen knownHolder // with a place or an error
}

// A sharing is how the callers of a cohort use what the server grants to their leader: one after
// the other (streaks), all together (phases), or each for itself (permits). All methods are called
// while the cohorts' mutex is held.
type sharing interface {
	// granted is called when the server has granted h to the leader of c.
	granted(c *cohort, h *hold)
	// release is called when a user of h releases h. See [cohorts.release] for the results.
	release(c *cohort, h *hold) (passed bool, rest *cohort)
}

// sharing returns how callers with the terms t share a lease.
func (cs *cohorts) sharing(t terms) sharing {
	switch {
	case t.mode == Shared:
		return phases{cs}
	case t.limit > 0:
		return permits{cs}
	}
	return streaks{cs}
}

// terms are the properties that the Rules of two callers must have in common to share a lease.
type terms struct {
	key           string
	mode          Mode
	ttl           time.Duration // 0: adaptive
	limit, weight int           // 0: the lease is no permit
}

// cohorts has those cohorts of an Engine that have a leader or a holder.
type cohorts struct {
	engine *Engine

	mu     sync.Mutex
	active map[terms]*cohort
	phases map[string]*hold // the holds of readers, by their tokens
}

func (cs *cohorts) init(e *Engine) {
	cs.engine = e
	cs.active = make(map[terms]*cohort)
	cs.phases = make(map[string]*hold)
}

// sharedTerms returns the terms on which callers with the rule r share a lease, and whether they
// do: not if r sets what concerns one caller's lease, and not a writer with NoWait, which asks the
// server itself.
func (cs *cohorts) sharedTerms(r Rule, adaptive bool) (terms, bool) {
	c := &cs.engine.cfg
	t := terms{key: c.prefix + r.Key, mode: r.Mode, ttl: r.TTL, limit: r.Limit, weight: r.Weight}
	if adaptive {
		t.ttl = 0
	}
	alone := c.handoffs == 1 || !c.renewal || r.hasOwnTerms() ||
		r.Wait == NoWait && r.Mode == Exclusive
	return t, !alone
}

// enter makes w the leader of the cohort with the terms t, or puts it behind the waiters of this
// cohort, or in front of them if its turn had come already. A caller with NoWait gets a cohort of
// its own instead. When too many callers wait, admitted is false. seen is what a caller that does
// not lead learns of the holder.
func (cs *cohorts) enter(w *waiter, t terms, inFront bool) (seen knownHolder, admitted bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.active[t]
	if c == nil {
		c = &cohort{terms: t}
		cs.active[t] = c
		w.cohort, w.leads, w.first = c, true, true
		return knownHolder{}, true
	}
	if w.rule.Wait == NoWait {
		w.cohort = &cohort{terms: t}
		return knownHolder{}, true
	}
	if w.turns == nil {
		w.turns = make(chan turn, 1)
	}
	if c.open { // since w has looked; no later event would wake it
		c.hold.users++
		w.cohort, w.waits = c, true
		w.turns <- turn{hold: c.hold, fence: c.hold.fence}
		return knownHolder{}, true
	}
	if seen = c.holderFor(len(c.waiting)); !inFront && !w.admit() {
		return seen, false
	}
	w.cohort, w.waits = c, true
	if inFront {
		c.waiting = slices.Insert(c.waiting, 0, w)
	} else {
		c.waiting = append(c.waiting, w)
	}
	return seen, true
}

// leave takes w out of its cohort, and returns what the cohort knows of the holder. If the turn of
// w has come, left is false, and the turn is in w.turns.
func (cs *cohorts) leave(w *waiter) (seen knownHolder, left bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := w.cohort
	i := slices.Index(c.waiting, w)
	if i < 0 {
		return knownHolder{}, false
	}
	c.waiting = slices.Delete(c.waiting, i, i+1)
	return c.holderFor(i), true
}

// holderFor returns what the cohort knows of the holder, for a caller in front of which the given number
// of callers wait. The caller holds the cohorts' mutex.
func (c *cohort) holderFor(inFront int) knownHolder {
	switch {
	case c.hold != nil:
		return knownHolder{known: true, holder: c.hold.holder(), heldSince: c.hold.received.time(), ahead: inFront}
	case c.last == nil:
		return knownHolder{}
	case !c.last.known:
		return knownHolder{failure: c.last.failure}
	}
	s := *c.last
	if s.holder.Left > 0 {
		s.holder.Left = max(s.holder.Left-time.Since(s.received), 0)
	}
	s.ahead = inFront + max(s.ahead, 1) // the leader, and the processes in front of it
	return s
}

// remember keeps who has the hold of c, which ends now, for the waiters of c: the key may be free
// when they ask, and then nobody else could tell them for whom they have waited. The caller holds
// the cohorts' mutex.
func (c *cohort) remember() {
	if c.hold != nil && len(c.waiting) > 0 {
		s := c.holderFor(0)
		s.holder.Left = 0
		c.last = &s
	}
}

// noteBusy is called when the server has answered the leader w that another token holds the key.
func (cs *cohorts) noteBusy(w *waiter) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	w.cohort.last = &knownHolder{known: true, holder: w.place.holder, received: time.Now(), heldSince: w.heldSince, ahead: w.place.position}
}

// noteFailure is called when the leader w has got no answer.
func (cs *cohorts) noteFailure(w *waiter) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if w.cohort.last == nil {
		w.cohort.last = new(knownHolder)
	}
	w.cohort.last.failure = w.failure
}

// makeRoom is called when the leader w must wait and WithMaxWaiters is reached. The leader counts
// as a waiter only now, so the caller that came last is refused, with the error refused. makeRoom
// returns false if the leader came last.
func (cs *cohorts) makeRoom(w *waiter, refused error) bool {
	if !w.leads {
		return false
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := w.cohort
	n := len(c.waiting)
	if n == 0 || c.waiting[n-1].began.Before(w.began) || !c.waiting[n-1].admitted {
		return false
	}
	last := c.waiting[n-1]
	c.waiting = slices.Delete(c.waiting, n-1, n)
	w.admitted = true
	last.turns <- turn{err: refused, seen: c.holderFor(len(c.waiting))}
	return true
}

// setHold makes h the hold of its cohort.
func (cs *cohorts) setHold(h *hold) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	// A semaphore's cohort has no hold of which it could tell its next waiters.
	if c := h.cohort; !c.isPermits() {
		c.last = nil
	} else if c.last != nil {
		c.last.failure = nil
	}
	h.used = 1
	cs.sharing(h.cohort.terms).granted(h.cohort, h)
}

// release is called when the user of h releases h. If h was handed over, or other callers still use
// it, passed is true. Otherwise h must go back to the server, and if the cohort has waiters but no
// leader, it is the result rest, for which the caller must call leadAfterRelease.
func (cs *cohorts) release(h *hold) (passed bool, rest *cohort) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if h.cohort == nil {
		h.ended = true
		return false, nil
	}
	return cs.sharing(h.cohort.terms).release(h.cohort, h)
}

// leadAfterRelease makes the first waiter of c the leader, when the release has ended or had no
// answer. If c is nil, leadAfterRelease does nothing.
func (cs *cohorts) leadAfterRelease(c *cohort) {
	if c != nil {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		cs.leadOrEnd(c, nil)
	}
}

// dropHold is called when h has ended on the server. Then the cohort of h asks the server again.
func (cs *cohorts) dropHold(h *hold) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	h.ended = true
	if c := h.cohort; c != nil && c.hold == h {
		cs.leadOrEnd(c, nil)
	}
}

// abdicate is called when the leader w ends without a hold. It makes the next waiter the leader,
// with the place of w if that place is in the queue, or its question is under way. If the server
// cannot be reached, overdue waiters fail at once, because otherwise each of them would first ask the
// server in vain.
func (cs *cohorts) abdicate(w *waiter) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := w.cohort
	for w.neverAnswered() && len(c.waiting) > 0 && c.waiting[0].overdue() {
		c.next().turns <- turn{err: w.err, seen: c.holderFor(0)}
	}
	cs.leadOrEnd(c, w)
}

// leadOrEnd makes the first waiter of c the leader, with the place of the former leader if this
// place may be in the server's queue or has a question under way; former may be nil. Without waiters,
// leadOrEnd ends the cohort. The caller holds cs.mu.
func (cs *cohorts) leadOrEnd(c *cohort, former *waiter) {
	if c.hold != nil {
		delete(cs.phases, c.hold.claim.Owner)
	}
	c.remember()
	c.hold, c.open = nil, false
	if len(c.waiting) > 0 {
		t := turn{seen: c.holderFor(-1)} // the new leader is not in front of itself
		// If it is not clear that the server has the token in its queue, the new leader asks at once.
		if former != nil && (former.place.question != nil || former.place.claim.Queue && former.place.token.state != tokenNowhere) {
			t.place = former.handOver()
		}
		c.next().turns <- t
		return
	}
	if cs.active[c.terms] == c {
		delete(cs.active, c.terms)
	}
}

// next takes the first waiter out of the cohort. The caller holds the cohorts' mutex.
func (c *cohort) next() *waiter {
	w := c.waiting[0]
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
	return w
}

// holder describes the present user of the hold, for a caller that waits for it. The caller holds
// the cohorts' mutex.
func (h *hold) holder() store.Holder {
	p := h.user()
	return store.Holder{Fence: p.Fence, Left: time.Until(h.renewal.deadline.load().time()), Metadata: h.signed}
}

// user returns the present user of h, or the last user if no caller uses h now. The caller holds
// the cohorts' mutex.
func (h *hold) user() Peer { return peer(h.fence+uint64(max(h.used-1, 0)), h.signed) }

// streaks is the sharing of locks: the callers of a cohort use one hold, one after the other. The
// streak ends after longestStreak callers or after streakWithin, so that other processes have
// their turn.
type streaks struct{ *cohorts }

func (streaks) granted(c *cohort, h *hold) { c.hold = h }

// release gives h to the next waiter, if the streak may go on.
func (cs streaks) release(c *cohort, h *hold) (passed bool, rest *cohort) {
	if c.hold != h { // h was lost meanwhile, and the cohort has noticed that
		h.ended = true
		return false, nil
	}
	if len(c.waiting) > 0 && cs.mayContinue(h) && cs.engine.keeper.beginHandOff(h) {
		w := c.next()
		t := turn{hold: h, fence: h.fence + uint64(h.used), releaser: h.user(), streak: int(h.used)}
		h.signed = w.meta
		h.used++
		w.turns <- t
		return true, nil
	}
	h.ended = true
	if len(c.waiting) == 0 {
		cs.leadOrEnd(c, nil)
		return false, nil
	}
	c.remember()
	c.hold = nil
	return false, c
}

// mayContinue reports whether the streak of h may go on with one more caller.
func (cs *cohorts) mayContinue(h *hold) bool {
	return h.used < h.block && instantOf(time.Now()).sub(h.received) < streakWithin && !cs.engine.isClosing()
}

// phases is the sharing of readers. The readers of one process share a hold: one token and one entry
// on the server, which the last of them releases. While the phase is open, newcomers use the hold
// too, without a call. The table shows the events, and what follows:
//
//	the hold is granted      all waiters of the cohort use it; the phase is open
//	a writer waits           the phase is closed: newcomers form a new cohort, and wait at the
//	                         server behind the writer, of which the grant, a message, or a renewal
//	                         tells (renewals are sent at once after messages may have been lost)
//	the hold is not sound    the phase is closed: newcomers should not depend on this hold
//	the hold is lost         the contexts of all its readers end
//	a reader acquires again  it uses the same hold, even while the phase is closed, because the writer
//	                         waits for this reader. With EndAfter or OnceFor it asks once
//
// A cohort of readers has waiting callers only until its leader has got a hold and shares it.
type phases struct{ *cohorts }

// granted makes h the hold of the cohort. The phase opens with letIn, when h is in the keeper's
// schedule.
func (cs phases) granted(c *cohort, h *hold) {
	c.hold, h.users = h, 1
	cs.phases[h.claim.Owner] = h
}

// release returns true when h has other users or is lost. If it returns false, the caller must
// release h at the server.
func (cs phases) release(c *cohort, h *hold) (passed bool, rest *cohort) {
	h.users--
	if c.hold != h || h.users > 0 {
		return true, nil
	}
	h.ended = true
	cs.leadOrEnd(c, nil) // ends the cohort: it has no waiters, because it has a hold
	return false, nil
}

// enterPhase counts the caller w as a user of the open hold for the terms t, and returns this hold.
// It returns nil when no hold is open.
func (cs *cohorts) enterPhase(w *waiter, t terms) *hold {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.active[t]
	if c == nil || !c.open {
		return nil
	}
	if !cs.engine.keeper.isSound(c.hold) {
		cs.closePhaseLocked(c.hold)
		return nil
	}
	w.cohort = c
	c.hold.users++
	return c.hold
}

// enterAgain counts the caller w as one more user of h. It returns false if h has ended.
func (cs *cohorts) enterAgain(w *waiter, h *hold) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := h.cohort; c == nil || c.hold != h {
		return false
	}
	w.cohort = h.cohort
	h.users++
	return true
}

// letIn makes all waiters of h's cohort users of h. Newcomers may use h as well, unless h is
// closed, or a writer waits and the parameter writer is therefore true.
func (cs *cohorts) letIn(h *hold, writer bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := h.cohort
	if c.hold != h {
		return // h is lost already
	}
	for len(c.waiting) > 0 {
		h.users++
		c.next().turns <- turn{hold: h, fence: h.fence}
	}
	if c.open = cs.active[c.terms] == c; writer || h.closed {
		cs.closePhaseLocked(h)
	}
}

// closePhase closes the phase of h, so that newcomers begin another hold.
func (cs *cohorts) closePhase(h *hold) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closePhaseLocked(h)
}

// noteWriter is called when the server reports that a writer waits for the end of the phase in
// which the owner of token reads.
func (cs *cohorts) noteWriter(token string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if h := cs.phases[token]; h != nil {
		cs.closePhaseLocked(h)
	}
}

// closePhaseLocked closes the phase of h, so that the next newcomer begins a new cohort. It may be
// called before letIn. The caller holds cs.mu.
func (cs *cohorts) closePhaseLocked(h *hold) {
	h.closed = true
	if c := h.cohort; c != nil && c.hold == h && c.open {
		c.open = false
		delete(cs.active, c.terms)
	}
}

// permits is the sharing of a semaphore's callers. A cohort of callers with equal Key, TTL, Limit and
// Weight has many holds at once, and its leader is only the caller that asks the server for the next
// permit. There is a leader as long as callers wait. The table shows the events, and what follows:
//
//	a permit is granted           the next caller leads, and asks at once
//	a permit is released, and     the first caller behind the leader gets it, with the next fence of
//	the streak is not over        its block. Without such a caller, as if the streak were over
//	a permit is released, and     the permit goes back to the server, which serves the queue, in
//	the streak is over            which the leader already waits
//	a permit is lost              nothing: the other callers do not depend on it
//	the leader gives up           the same as with a lock
type permits struct{ *cohorts }

// isPermits reports whether the callers of a cohort want permits of a semaphore.
func (c *cohort) isPermits() bool { return c.terms.limit > 0 }

// maxHolders returns how many callers with this rule may hold the key at once.
func (r Rule) maxHolders() int { return max(r.Limit/max(r.Weight, 1), 1) }

// granted makes the next caller of the cohort the leader.
func (cs permits) granted(c *cohort, _ *hold) { cs.leadOrEnd(c, nil) }

// release gives the permit h to the next caller, if the streak may go on.
func (cs permits) release(c *cohort, h *hold) (passed bool, rest *cohort) {
	c = cs.active[c.terms]
	if c == nil || len(c.waiting) == 0 || h.ended || !cs.mayContinue(h) || !cs.engine.keeper.beginHandOff(h) {
		h.ended = true
		return false, nil
	}
	fence := h.fence + uint64(h.used)
	h.used++
	h.cohort = c
	c.next().turns <- turn{hold: h, fence: fence}
	return true, nil
}
