package locker

import (
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// streakWithin is the time after which no streak continues. This limit shortens the wait of other
// processes when the work under each lock is long.
const streakWithin = 10 * time.Millisecond

// mostSpare is the largest number of ended cohorts whose memory is kept. Without this limit, a
// moment in which many keys are in use would leave its memory behind for good.
const mostSpare = 64

// A cohort consists of the callers of this process that want one key on the same terms. One of
// these callers, the leader, asks the server or holds the lock. The other callers wait in the
// cohort, in order, and send nothing to the server. This design is lock cohorting, by Dice, Marathe
// and Shavit (PPoPP 2012). While a streak lasts, a hold that its user releases goes to the next
// caller of the cohort, with the next fence of its block. After the streak, the hold goes back to
// the server, and the next waiter becomes the leader and queues at the server.
//
// The table shows the events of a cohort with waiters, and what follows:
//
//	release, streak not over  the next waiter gets the hold
//	release, streak over      the next waiter leads when the release has ended, or continues in the
//	                          background
//	the hold is lost          the next waiter leads, with a token of its own
//	the leader gives up       the next waiter leads, with the leader's place in the server's queue
//	or fails                  if that is certain; if the server cannot be reached, overdue waiters
//	                          fail with the leader
//	the leader must wait,     the caller that came last is refused
//	and WithMaxWaiters is
//	reached
//	a waiter gives up          it leaves; if its turn has come meanwhile, the turn is passed on
type cohort struct {
	terms   terms
	hold    *hold // nil while the leader asks the server
	waiting []*acquisition

	// parked is the leader of a semaphore's cohort while the leader waits at the server. See
	// cohort_permits.go.
	parked *acquisition

	open      bool          // true if hold is Shared and more callers may use it
	sawHolder bool          // the server has answered a leader that the key is held
	last      *leaderAnswer // the last answer to a leader that did not get the key; nil: none
}

// leaderAnswer is what the Store has answered to a leader that did not get the key. It is allocated
// only when it is needed, to save memory: there may be many cohorts, and most need none.
type leaderAnswer struct {
	holder    store.Holder // the holder, while the cohort has no hold
	received  time.Time    // when this process received the answer
	heldSince time.Time    // when the holder got the key; zero: unknown
	place     int          // the leader's place in the server's queue; 0: unknown
	failure   error        // the error of the leader's last question
}

// lastAnswer returns the last answer to a leader, or the zero value if there is none.
func (c *cohort) lastAnswer() leaderAnswer {
	if c.last == nil {
		return leaderAnswer{}
	}
	return *c.last
}

// noteError records err, the error of the leader's last question, or nil if the question had an
// answer.
func (c *cohort) noteError(err error) {
	if c.last == nil {
		if err == nil {
			return
		}
		c.last = new(leaderAnswer)
	}
	c.last.failure = err
}

// A sharing is how the callers of a cohort use what the server grants to their leader: one after
// the other (streaks), all together (phases), or each for itself (permits). All methods are called
// while the cohorts' mutex is held.
type sharing interface {
	// join lets a, which has come to the cohort c, use the hold of c without a wait. It returns
	// false if a must wait for its turn.
	join(c *cohort, a *acquisition) bool
	// granted is called when the server has granted h to the leader of c.
	granted(c *cohort, h *hold)
	// release is called when a user of h releases h. See [cohorts.release] for the results.
	release(c *cohort, h *hold) (passed bool, rest *cohort)
	// vacate is called when c has no hold any more. It returns whether the memory of c may be used
	// again when no caller waits.
	vacate(c *cohort) (reusable bool)
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
	spare  []*cohort        // ended cohorts, whose memory is used again
	phases map[string]*hold // the holds of readers, by their tokens
}

func (cs *cohorts) init(e *Engine) {
	cs.engine = e
	cs.active = make(map[terms]*cohort)
	cs.phases = make(map[string]*hold)
}

// sharedTerms returns the terms on which callers with the rule r share a lease. It also returns
// whether such callers share a lease at all. KeepFor, EndAfter, OnceFor, Metadata and
// WithoutRenewal concern one caller's lease, so callers with these settings do not share. A writer
// with NoWait asks the server itself. Readers share a lease even with NoWait.
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

// enter makes the acquisition a the leader of the cohort with the terms t, or puts it behind the
// waiters of this cohort. If the parameter inFront is true, a goes in front of the waiters,
// because its turn had come already. If the cohort already has a leader or a holder, a caller
// with NoWait gets a cohort of its own. When too many callers wait, enter returns false.
func (cs *cohorts) enter(a *acquisition, t terms, inFront bool) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.active[t]
	if c == nil {
		if n := len(cs.spare); n > 0 {
			c, cs.spare = cs.spare[n-1], cs.spare[:n-1]
		} else {
			c = new(cohort)
		}
		c.terms = t
		cs.active[t] = c
		a.cohort, a.leads = c, true
		return true
	}
	if a.caller.rule.Wait == NoWait {
		a.cohort = &cohort{terms: t}
		return true
	}
	if cs.sharing(t).join(c, a) {
		return true
	}
	if !inFront && !a.admit() {
		c.copyTo(a, len(c.waiting))
		return false
	}
	a.cohort = c
	a.expectTurn()
	if p, signed := c.blocker(); p != (Peer{}) {
		a.waiting.noteMet(&a.caller, p)
		a.ticket.holder.Metadata = signed
	}
	if inFront {
		c.waiting = slices.Insert(c.waiting, 0, a)
	} else {
		c.waiting = append(c.waiting, a)
	}
	return true
}

// leave removes a from the waiters, and gives it what the cohort knows about the holder. If a has
// got its turn, leave returns false, and the turn is in a.turn.
func (cs *cohorts) leave(a *acquisition) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := a.cohort
	i := slices.Index(c.waiting, a)
	if i < 0 {
		return false
	}
	c.waiting = slices.Delete(c.waiting, i, i+1)
	c.copyTo(a, i)
	return true
}

// copyTo copies what the cohort knows about the holder into a, in front of which the given number
// of callers wait. The caller holds the cohorts' mutex.
func (c *cohort) copyTo(a *acquisition, inFront int) {
	r := c.lastAnswer()
	switch {
	case c.hold != nil:
		r = leaderAnswer{holder: c.hold.holder(), heldSince: c.hold.received.time()}
	case !c.sawHolder:
		return
	case r.holder.Left > 0:
		r.holder.Left = max(r.holder.Left-time.Since(r.received), 0)
	}
	if c.hold == nil {
		inFront += max(r.place, 1) // the leader, and the processes in front of it
	}
	a.waiting.ahead = inFront
	a.ticket.holder, a.ticket.current = r.holder, r.failure == nil
	a.waiting.busySince, a.waiting.heldSince, a.waiting.failure = a.caller.began, r.heldSince, r.failure
}

// noteBusy is called when the server has answered the leader a that another token holds the key.
func (cs *cohorts) noteBusy(a *acquisition) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := a.cohort
	c.sawHolder, c.last = true, &leaderAnswer{holder: a.ticket.holder, received: time.Now(), heldSince: a.waiting.heldSince, place: a.ticket.place}
}

// noteFailure is called when the leader a has got no answer.
func (cs *cohorts) noteFailure(a *acquisition) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	a.cohort.noteError(a.waiting.failure)
}

// makeRoom is called when the leader a must wait and WithMaxWaiters is reached. The leader counts
// as a waiter only now, and other callers may have taken the last places before. So the caller that
// came last is refused, with the error refused. makeRoom returns false if the leader came last.
func (cs *cohorts) makeRoom(a *acquisition, refused error) bool {
	if !a.leads {
		return false
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := a.cohort
	n := len(c.waiting)
	if n == 0 || c.waiting[n-1].caller.began.Before(a.caller.began) {
		return false
	}
	last := successor{c.waiting[n-1]}
	c.waiting = slices.Delete(c.waiting, n-1, n)
	a.waiting.admitted = true
	last.refuse(c, refused)
	return true
}

// setHold makes h the hold of its cohort.
func (cs *cohorts) setHold(h *hold) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	h.cohort.noteError(nil)
	h.used = 1
	cs.sharing(h.cohort.terms).granted(h.cohort, h)
}

// release is called when the user of h releases h. If h was handed over, or other callers still use
// it, passed is true. If passed is false, h must go back to the server. If the cohort has waiters
// but no leader, release returns the cohort as rest, and its caller must call leadAfterRelease. Until
// that call, the waiters stay in the cohort, and can leave it.
func (cs *cohorts) release(h *hold) (passed bool, rest *cohort) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if h.cohort == nil {
		h.ended = true
		return false, nil
	}
	return cs.sharing(h.cohort.terms).release(h.cohort, h)
}

// blocker returns the holder for whose release a new waiter waits, and its signed metadata. It
// returns the zero Peer if the holder is not known. The caller holds the cohorts' mutex.
func (c *cohort) blocker() (p Peer, signed string) {
	switch {
	case c.hold != nil:
		return c.hold.user(), c.hold.signed
	case c.sawHolder:
		h := c.lastAnswer().holder
		return peer(h.Fence, h.Metadata), h.Metadata
	}
	return Peer{}, ""
}

// leadAfterRelease makes the first waiter of c the leader, when the release has ended or continues
// in the background. If c is nil, leadAfterRelease does nothing.
func (cs *cohorts) leadAfterRelease(c *cohort) {
	if c == nil {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.leadOrEnd(c).serve(turn{sawHolder: true})
}

// dropHold is called when h has ended on the server. Then the cohort of h asks the server again.
func (cs *cohorts) dropHold(h *hold) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	h.ended = true
	if c := h.cohort; c != nil && c.hold == h {
		cs.leadOrEnd(c).serve(turn{sawHolder: true})
	}
}

// abdicate is called when the leader a ends without a hold, with the error err. It makes the next
// waiter the leader, with the old leader's ticket if that ticket is in the queue. If the server
// cannot be reached, overdue waiters fail at once, because otherwise each of them would first ask
// the server in vain.
func (cs *cohorts) abdicate(a *acquisition, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := a.cohort
	next := cs.leadOrEnd(c)
	for next.waiter != nil && a.waiting.neverAnswered(err) && next.waiter.caller.overdue() {
		next.serve(turn{err: err})
		next = cs.leadOrEnd(c)
	}
	if next.waiter != nil {
		next.succeed(c, a)
	}
}

// leadOrEnd makes the first waiter of c the leader, and returns it. The caller must serve the new
// leader. Without waiters, leadOrEnd ends the cohort, keeps its memory if vacate allows that,
// and returns none. The caller holds cs.mu.
func (cs *cohorts) leadOrEnd(c *cohort) successor {
	reusable := cs.sharing(c.terms).vacate(c)
	c.hold, c.open = nil, false
	if len(c.waiting) > 0 {
		return c.next()
	}
	if cs.active[c.terms] == c {
		delete(cs.active, c.terms)
		c.waiting, c.sawHolder, c.last = c.waiting[:0], false, nil
		if len(cs.spare) < mostSpare && reusable {
			cs.spare = append(cs.spare, c)
		}
	}
	return successor{}
}

// next takes the first waiter out of the cohort. The caller holds the cohorts' mutex.
func (c *cohort) next() successor {
	a := c.waiting[0]
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
	return successor{a}
}
