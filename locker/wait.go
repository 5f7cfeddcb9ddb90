package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// A waiter is one call of Acquire: what its caller wants, and what it has seen. It belongs to the
// goroutine of the caller, and no other goroutine writes into it: a cohort only sends it a turn, and
// reads, under its mutex, what the caller wants. What the server knows of it is its place; when the
// waiter has handed this place over, it belongs to the next leader, also if it is the field own.
//
// A wait has four states. Each is a function that returns the next one: waitInCohort, ask,
// waitInQueue, and over, which ends the wait. docs/architecture.md has the table. In each state the
// wait also ends when ctx or Rule.Wait ends, or when the Locker closes or drains: see await. Then
// cleanUp leaves the cohort, gives up the lead, and gives back the place: a call that still arrives
// takes nothing, and a grant that still comes goes to the next waiter.
type waiter struct {
	// What the caller wants, and until when.
	engine   *Engine
	rule     Rule
	adaptive bool            // the Engine chose the TTL
	ctx      context.Context // the caller's own context; the lease's contexts descend from it
	observed context.Context // the context of the calls: ctx plus the Observer's additions
	began    time.Time
	timer    *time.Timer      // nil: there is no limit
	expiry   <-chan time.Time // fires when rule.Wait is over
	refused  <-chan struct{}  // closed when the caller must not wait any longer: see isRefused
	meta     string           // the signed metadata: see config.sign
	finish   func(Outcome)    // ends what the Observer has begun; nil: there is no Observer
	// laterKey is a key that the caller's RunAll holds and that comes after rule.Key in the order
	// of keys, or rule.Key itself if the caller holds units of this semaphore. If there is one, this
	// acquire must not wait.
	laterKey     string
	alreadyReads bool // the caller holds the key as a reader, and a writer may wait for it

	// Where it stands.
	place  *place    // its token at the server; in most cases &own
	own    place     // its first place
	cohort *cohort   // nil: the caller shares no hold with other callers
	turns  chan turn // receives the only turn of each wait in a cohort
	waits  bool      // the cohort will send a turn, or has sent it
	leads  bool      // the cohort waits until this waiter gets a hold or abdicates
	first  bool      // it has begun the cohort

	// What it has seen.
	calls      int
	rounds     int         // how many round trips a quorum needed
	asked      time.Time   // when the server was first asked; zero: not yet
	busySince  time.Time   // zero: no holder was seen
	heldSince  time.Time   // when the holder got the key; zero: unknown
	ahead      int         // how many callers and other processes are known to wait in front of it
	failure    error       // the error of the last call that gave no answer
	admitted   bool        // it is counted among the waiters of its key
	polled     bool        // the last question was sent after a pause of the Backoff
	record     *waitRecord // what the Observer learns about the holder; nil: no holder was seen yet
	pauses     func() (time.Duration, bool)
	stopPauses func()

	// The result.
	lease *Lease
	err   error
}

// A state is one of the four states of a wait.
type state uint8

const (
	inCohort state = iota
	asking
	queued
	over
)

// run waits until there is a lease or an error.
func (w *waiter) run() (*Lease, error) {
	defer w.cleanUp() // deferred, because a Backoff or a method of ctx may panic
	s := w.begin()
	for {
		switch s {
		case inCohort:
			s = w.waitInCohort()
		case asking:
			s = w.ask()
		case queued:
			s = w.waitInQueue()
		case over:
			return w.lease, w.err
		}
	}
}

// end ends the wait with a lease or an error.
func (w *waiter) end(l *Lease, err error) state {
	w.lease, w.err = l, err
	return over
}

// begin refuses an acquire that must not wait, and returns the first state of all others.
func (w *waiter) begin() state {
	if err := w.ctx.Err(); err != nil {
		return w.end(nil, w.fail(err, 0))
	}
	if w.isRefused() {
		return w.end(nil, w.fail(ErrClosed, 0))
	}
	outer, err := w.checkNested()
	if err != nil {
		return w.end(nil, w.fail(err, 0))
	}
	if outer != nil && w.rule.hasOwnTerms() {
		w.alreadyReads, w.rule.Wait = true, NoWait // a writer may wait for the outer lease, so this acquire must not wait for the writer
	}
	if w.rule.Wait > 0 {
		w.timer = w.engine.timers.Start(w.rule.Wait)
		w.expiry = w.timer.C
	}
	w.describe()
	if outer != nil && !w.alreadyReads {
		if l := w.readAlong(outer); l != nil {
			return w.end(l, nil)
		} // otherwise the outer lease was released or lost meanwhile
	}
	t, shares := w.engine.cohorts.sharedTerms(w.rule, w.adaptive)
	switch {
	case shares:
		return inCohort
	case w.rule.Mode == Shared:
		w.cohort = &cohort{terms: t} // no lease to share, so the caller gets a cohort of its own
	}
	return asking
}

// describe determines the metadata of the lease, once, and signs it.
func (w *waiter) describe() {
	if w.meta != "" {
		return
	}
	if w.meta = w.rule.Metadata; w.meta == "" && w.engine.cfg.metadata != nil {
		w.meta = w.engine.cfg.metadata(w.observed)
	}
	w.meta = w.engine.cfg.sign(w.observed, shorten(w.meta, maxMetadataBytes))
}

// shorten cuts text to at most n bytes, and not within a character.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}

// cleanUp gives back what an unsuccessful acquire has: its turn, the lead of the cohort, and its
// place at the server.
func (w *waiter) cleanUp() {
	defer w.endWait()
	if w.timer != nil {
		defer w.engine.timers.Stop(w.timer)
	}
	w.leave()
	if w.lease == nil {
		if w.leads {
			w.engine.cohorts.abdicate(w)
		}
		w.place.giveBack(w.engine)
	}
	if w.admitted {
		w.engine.waiters.dismiss(w.key())
	}
	if w.stopPauses != nil {
		w.stopPauses()
	}
}

// recycle keeps the memory of a waiter that has got a lease for a later acquire of the same Engine:
// a quarter of what a lock allocates. No other goroutine refers to it: the cohort has removed it
// before it sent the turn, the post has deleted its mailbox, and only a leader without a lease
// hands its place over. Readers are left out, because several waiters share their lease.
func (w *waiter) recycle() {
	if w.rule.Mode == Shared {
		return
	}
	e := w.engine
	*w = waiter{turns: w.turns} // the channel is empty: its only turn was received
	e.spareWaiters.Put(w)
}

// waitInCohort makes the waiter the leader of the callers of this process that want the key on the
// same terms, or waits for its turn among them.
func (w *waiter) waitInCohort() state {
	e := w.engine
	t, _ := e.cohorts.sharedTerms(w.rule, w.adaptive)
	for inFront := false; ; inFront = true {
		if t.mode == Shared {
			if l := w.readShared(t); l != nil {
				return w.end(l, nil)
			}
		}
		seen, admitted := e.cohorts.enter(w, t, inFront)
		w.note(seen)
		switch {
		case !admitted:
			return w.end(nil, w.fail(ErrTooManyWaiters, w.retryAfter()))
		case !w.waits:
			return asking
		}
		if len(w.turns) == 0 {
			w.noteWait(0)
		}
		a := awaited{turns: w.turns}
		if what, why := w.await(&a); what == waitOver {
			w.leave()
			return w.end(nil, w.giveUp(why))
		}
		got := a.turn
		switch w.waits = false; {
		case got.err != nil:
			w.note(got.seen)
			w.noteRefusal(got.err)
			return w.end(nil, got.err)
		case got.hold == nil:
			w.note(got.seen)
			if w.leads = true; got.place != nil {
				w.place = got.place
			}
			if w.place.token.state == tokenQueued {
				return queued
			}
			return asking
		}
		if w.busySince = w.began; got.streak > 0 {
			w.noteHandoff(got.releaser, "local", got.streak)
		}
		if l := w.takeOver(got); l != nil {
			return w.end(l, nil)
		}
		if e.isClosing() {
			return w.end(nil, w.fail(ErrClosed, 0))
		}
		// The hold was lost meanwhile. The turn had come already, so the waiter goes to the front.
	}
}

// note takes over what the cohort knows of the holder.
func (w *waiter) note(s knownHolder) {
	if w.failure = s.failure; !s.known {
		return
	}
	w.ahead, w.heldSince = s.ahead, s.heldSince
	w.place.holder, w.place.current = s.holder, s.failure == nil
	if w.busySince.IsZero() {
		w.busySince = w.began
	}
	if p := peer(s.holder.Fence, s.holder.Metadata); p != (Peer{}) {
		w.noteMet(p)
	}
}

// leave takes the waiter out of its cohort, before the wait ends without a lease. A turn that has
// come meanwhile goes to the next caller.
func (w *waiter) leave() {
	if !w.waits {
		return
	}
	w.waits = false
	seen, left := w.engine.cohorts.leave(w)
	if left {
		w.note(seen)
		return
	}
	t := <-w.turns
	w.busySince = w.began
	w.note(t.seen)
	switch {
	case t.err != nil:
		w.noteRefusal(t.err)
	case t.hold != nil:
		w.passOn(t.hold)
	default: // cleanUp gives up the lead
		if w.leads = true; t.place != nil {
			w.place = t.place
		}
	}
}

// noteRefusal is called when the cohort has refused the waiter with err.
func (w *waiter) noteRefusal(err error) {
	if errors.Is(err, ErrTooManyWaiters) {
		w.admitted = false // the leader counts instead: see makeRoom
	}
}

// passOn gives the hold h, which came too late, to the next caller, or back to the server.
func (w *waiter) passOn(h *hold) {
	passed, rest := w.engine.cohorts.release(h)
	if !passed {
		h.releaseUnused()
	}
	w.engine.cohorts.leadAfterRelease(rest)
}

// takeOver makes a Lease of the hold in t, which was handed over or is shared. It returns nil when
// the hold was lost meanwhile, or the Engine is closing.
func (w *waiter) takeOver(t turn) *Lease {
	taken := false
	defer func() {
		if !taken {
			w.passOn(t.hold)
		}
	}()
	l := new(Lease)
	l.init(w, t.hold, t.fence)
	if taken = w.engine.keeper.attach(t.hold, l); taken {
		return l
	}
	if w.engine.isClosing() {
		l.notifyObserver(ErrClosed)
	} else {
		l.notifyObserver(ErrLost)
	}
	return nil
}

// readShared returns a Lease that shares the hold of this process's readers with the terms t, or
// nil if their phase is not open.
func (w *waiter) readShared(t terms) *Lease {
	h := w.engine.cohorts.enterPhase(w, t)
	if h == nil {
		return nil
	}
	l := w.takeOver(turn{hold: h, fence: h.fence})
	if l == nil {
		w.engine.cohorts.closePhase(h) // the hold was lost meanwhile
	}
	return l
}

// readAlong returns a Lease that uses the same hold as outer, the lease under which the caller
// already reads. readAlong returns nil if this hold has ended.
func (w *waiter) readAlong(outer *Lease) *Lease {
	if h := outer.hold; w.engine.cohorts.enterAgain(w, h) {
		return w.takeOver(turn{hold: h, fence: h.fence})
	}
	return nil
}

// ask sends one question, and acts on its answer. There is one at a time.
func (w *waiter) ask() state {
	e, p := w.engine, w.place
	if p.claim.Owner == "" {
		if w.rule.Mode == Shared {
			if why := w.subscribeFirst(); why != nil {
				return w.end(nil, w.giveUp(why))
			}
		}
		p.prepare(w)
	}
	q := p.question
	if p.question = nil; q == nil {
		w.calls++
		p.send(time.Now())
		q = e.steps.Begin(w.observed, calls.Acquire, p.claim, nil)
	}
	if w.asked.IsZero() {
		w.asked = p.sentAt
	}
	wasCurrent := p.current
	p.current = false
	silence, end := w.silence()
	defer end()
	a := awaited{answer: q.Answered(), bell: p.box.bell, silence: silence}
	for {
		switch what, why := w.await(&a); what {
		case answerCame:
			g, err := q.Answer()
			if err != nil {
				return w.handleError(err)
			}
			return w.handleAnswer(g)
		// The message of a grant may come before the answer, which usually follows at once. So it
		// is cheaper to wait for the answer than to abandon the call.
		case bellRang:
			if _, granted := e.post.grantIn(&p.box); granted {
				timer := e.timers.Start(freshGrant / 2)
				defer e.timers.Stop(timer)
				a.timer, a.bell = timer.C, nil
			}
		case timerFired:
			if g, granted := e.post.grantIn(&p.box); granted {
				if _, certain := p.grantTime(e, g); certain {
					q.Abandon()
					p.token.endCall(callLost)
					return w.takeGrant(g)
				}
			}
		case silenceOver:
			p.abandon(q)
			return w.handleNoAnswer(errNoAnswer)
		default:
			p.question = q // for the next leader; if there is none, giveBack abandons it
			if time.Since(p.sentAt) > freshGrant {
				w.failure = cmp.Or(w.failure, errNoAnswer)
			} else {
				p.current = wasCurrent // the last answer is recent enough for the error
			}
			return w.end(nil, w.giveUp(why))
		}
	}
}

// handleAnswer acts on g, the Store's answer to a question.
func (w *waiter) handleAnswer(g store.Grant) state {
	p := w.place
	w.rounds += g.Rounds
	if w.polled {
		w.polled = false
		w.engine.times.recordAttempt(w.rule.Name, g.State == store.Granted)
	}
	p.token.endCall(p.eventOf(g))
	w.failure = nil
	// A hand-off that nobody has confirmed in time costs all waiters of this process and key their
	// places in the queue. They are told, because otherwise they sleep beside a free key.
	if late := p.handed; late != 0 && late != g.Fence {
		w.engine.post.deliver(store.Event{Kind: store.EventFree, Key: p.claim.Key, Inbox: p.claim.Inbox})
	}
	p.handed = 0
	switch g.State {
	case store.Granted:
		return w.newLease(g, p.sentAt, 0)
	case store.Busy:
		w.noteBusy(g)
		if w.rule.Wait == NoWait {
			return w.end(nil, w.giveUp(errWaitOver))
		}
		return queued
	case store.Done:
		return w.end(nil, w.fail(ErrDone, 0))
	// An earlier call was granted but its answer was lost, and then an operator revoked the lease. The
	// next leader must not get this token, or it would get the same answer.
	case store.Revoked:
		p.giveBack(w.engine)
		return w.end(nil, w.fail(revokedBecause(g.Reason), 0))
	default: // for example Undone, which is the answer only to a token that was given up
		p.giveBack(w.engine)
		return w.end(nil, w.fail(fmt.Errorf("%w: unexpected answer %q to an acquire", ErrUnavailable, g.State), 0))
	}
}

// noteBusy records what the answer g shows: the holder and the place in the queue.
func (w *waiter) noteBusy(g store.Grant) {
	p := w.place
	p.noteBusy(g)
	w.ahead = max(g.Place-1, 0)
	// A semaphore has several holders, and the first of them is not always the first to release
	// its permit.
	if w.rule.Limit == 0 {
		w.heldSince = holdsSince(g.Holder, g.At, p.sentAt)
	}
	if w.record != nil { // a hand-off that a message has told of is over
		w.record.freed, w.record.handoff = Peer{}, ""
	}
	w.noteMet(peer(g.Holder.Fence, g.Holder.Metadata))
	if w.rule.Wait != NoWait {
		w.noteWait(g.Place)
	}
	if w.busySince.IsZero() {
		w.busySince = p.sentAt
	}
	if w.cohort != nil {
		w.engine.cohorts.noteBusy(w)
	}
	if p.notListening {
		w.engine.post.resubscribe(p.claim.Inbox)
	}
}

// newLease makes the lease of the grant g. The deadline counts from start, a time that is no later
// than the grant. If the grant came by message, handoffTTL is how long the server keeps the lease;
// otherwise it is 0.
func (w *waiter) newLease(g store.Grant, start time.Time, handoffTTL time.Duration) state {
	e, p := w.engine, w.place
	ttl := p.claim.TTL // of the caller that has begun the place, not of who got it later
	life := ttl
	if handoffTTL > 0 {
		life = handoffTTL
	}
	deadline := start.Add(life - e.cfg.drift(life))
	if gone := w.ctx.Err(); gone != nil {
		return w.end(nil, w.fail(gone, 0))
	}
	now := time.Now()
	if !now.Before(deadline) {
		w.renewPlace()
		return w.handleNoAnswer(fmt.Errorf("the answer arrived after the lease of %v had ended; raise the TTL", ttl))
	}
	f := new(holdWithLease)
	f.hold = hold{
		engine: e, claim: p.claim, fence: g.Fence, block: int32(g.FenceCount), start: instantOf(start), received: instantOf(now),

		unclear: p.token.state == tokenUnclear, posted: p.posted, cohort: w.cohort, signed: w.meta,
		renewal: renewal{renewTTL: ttl, longest: ttl, handoffTTL: handoffTTL, adaptive: w.adaptive},
	}
	f.hold.renewal.deadline.store(instantOf(deadline))
	if w.rule.Mode == Shared {
		f.hold.claim.Fence = g.Fence
	}
	if w.rule.EndAfter != 0 {
		f.hold.renewal.atMostEnd = instantOf(start).plus(w.rule.EndAfter)
	}
	if w.rule.KeepFor != 0 {
		f.hold.keepUntil = instantOf(now).plus(w.rule.KeepFor)
	}
	f.lease.init(w, &f.hold, g.Fence)
	if w.cohort != nil {
		// This call must come before the hold is in the schedule, because the keeper may then
		// report a loss of the hold to the cohort.
		e.cohorts.setHold(&f.hold)
		// A semaphore's cohort has got its next leader in setHold.
		w.leads = w.leads && w.rule.Limit == 0
	}
	writer := g.Writer
	if p.posted {
		writer = e.post.ignore(p.claim.Owner) || writer
	}
	if !e.keeper.add(&f.hold, &f.lease, start) {
		f.lease.notifyObserver(ErrClosed)
		return w.end(nil, w.fail(ErrClosed, 0))
	}
	if w.rule.Mode == Shared {
		e.cohorts.letIn(&f.hold, writer)
	}
	return w.end(&f.lease, nil)
}

// waitInQueue waits until the key may be free, or a message has brought a grant. A waiter that is
// in no queue, or that no message reaches, only pauses.
func (w *waiter) waitInQueue() state {
	e, p := w.engine, w.place
	if !w.busySince.IsZero() && !w.admit() {
		if refused := w.fail(ErrTooManyWaiters, w.retryAfter()); !e.cohorts.makeRoom(w, refused) {
			return w.end(nil, refused)
		}
	}
	if !p.claim.Queue && p.current && e.cfg.queue {
		return w.enterQueue()
	}
	// At the next hand-off the server removes a waiter whose inbox has no subscriber from the queue,
	// as if its process were dead. It keeps a waiter without an inbox.
	if p.notListening && e.post.inbox(p.claim.Key) == "" {
		inbox, why := w.open(unansweredFor)
		switch {
		case why != nil:
			return w.end(nil, w.giveUp(why))
		case inbox != p.claim.Inbox:
			w.renewPlace()
			return asking
		}
	}
	// A leader that takes the place over asks when its predecessor would have asked.
	if p.askAt.IsZero() {
		pause, ok := w.patience()
		if !ok {
			return w.end(nil, w.giveUp(errWaitOver))
		}
		p.askAt = time.Now().Add(pause)
	}
	timer := e.timers.Start(time.Until(p.askAt))
	defer e.timers.Stop(timer)
	a := awaited{timer: timer.C, bell: p.box.bell}
	for {
		// The events that came before this wait count too.
		switch n := e.post.takeNews(&p.box); {
		case n.workDone:
			p.token.readMessage(readDone)
			return w.end(nil, w.fail(ErrDone, 0))
		case n.reopened: // another server, with another clock, may answer now
			p.clock, p.firstSent = anchor{}, time.Time{}
			return asking
		case n.granted:
			p.token.readMessage(readGrant)
			return w.takeGrant(n.grant)
		// A hint that the key may be free is ignored after an error or a late grant, because the
		// undo of this token may have caused the hint. If such a hint counted, the waiter would ask
		// again and again without a pause.
		case n.maybeFree && p.current:
			return asking
		case n.isHead:
			p.position, w.ahead = 1, 0
			// The event only makes the waiter ask its next question sooner.
			soon := min(time.Until(n.freeBy)+time.Millisecond, headAsks)
			if at := time.Now().Add(soon); at.Before(p.askAt) {
				p.askAt = at
			}
			timer.Reset(time.Until(p.askAt))
		}
		switch what, why := w.await(&a); what {
		case timerFired:
			return asking
		case waitOver:
			return w.end(nil, w.giveUp(why))
		default: // the bell
		}
	}
}

// takeGrant takes the grant that a message has brought. If the time of the grant is not certain,
// the waiter asks, and the answer shows whether the token holds the key.
func (w *waiter) takeGrant(g store.Event) state {
	w.noteHandoff(Peer{Traceparent: g.ReleasedBy}, "remote", 0)
	since, certain := w.place.grantTime(w.engine, g)
	if !certain {
		w.place.handed = g.Fence
		return asking
	}
	return w.newLease(store.Grant{State: store.Granted, Fence: g.Fence, FenceCount: g.FenceCount, At: g.At, Writer: g.Writer}, since, g.HandoffTTL)
}

// patience returns how long the waiter waits for an event before it asks again. It returns false
// when the Backoff has ended.
func (w *waiter) patience() (d time.Duration, ok bool) {
	e, p := w.engine, w.place
	left := p.holder.Left
	// notified is false if the process has no subscription, because then it receives no messages.
	notified := p.claim.Inbox != "" && !p.notListening && e.post.inbox(p.claim.Key) != ""
	if p.current && p.position > 0 && notified && (p.position > 1 || !p.holder.Foreign) {
		p.rechecks++
		switch {
		case p.position == 1 && left >= 0:
			pause := headAsks << min(p.rechecks-1, 4)
			return min(pause, max(headAsks, p.claim.TTL/2), othersAsk, left+time.Millisecond), true
		case p.position == 1 || p.rechecks == 1:
			return headAsks + rand.N(headAsks/4), true
		// A foreign holder frees the key without a message. The head of the queue polls for it
		// but may have died, so other waiters ask too.
		case p.holder.Foreign:
			return headAsks + rand.N(headAsks), true
		case left >= 0:
			return min(max(left+rand.N(headAsks), headAsks), othersAsk), true
		}
		return othersAsk, true
	}
	// Here the waiter cannot be notified: the holder is foreign, the subscription is lost, the
	// Store sends no messages, or a call failed.
	if d, ok = w.nextPause(); p.current && left >= 0 {
		d = min(d, left+time.Millisecond)
	}
	if w.rule.Wait == NoWait { // after a question without an answer
		d = min(d, max(unansweredFor-time.Since(w.began), shortestPause))
	}
	w.polled = p.current
	return d, ok
}

// nextPause returns the next pause of the Backoff, or false when the Backoff has ended.
func (w *waiter) nextPause() (time.Duration, bool) {
	if b := w.engine.cfg.adaptive; b != nil {
		return b.pause(w.engine.times.advise(w.rule.Name)), true
	}
	if w.pauses == nil {
		w.pauses, w.stopPauses = iter.Pull(w.engine.cfg.backoff)
	}
	d, ok := w.pauses()
	return max(d, shortestPause), ok
}

// enterQueue is called when the first question has found the key busy. It subscribes, and prepares
// the place for the queue.
func (w *waiter) enterQueue() state {
	inbox, why := w.open(unansweredFor)
	if why != nil {
		return w.end(nil, w.giveUp(why))
	}
	if w.rule.Mode == Shared && inbox != w.place.claim.Inbox {
		w.renewPlace() // the server has registered the token as a reader with the old inbox
	}
	if !w.place.claim.Queue {
		w.place.prepareQueue(w, inbox)
	}
	return asking
}

// subscribeFirst subscribes before the first question of a reader, so that the server can notify
// this process of a waiting writer. If that takes long, the reader learns of a writer at its next
// renewal.
func (w *waiter) subscribeFirst() error {
	if p := &w.engine.post; p.notifier == nil || !w.engine.cfg.queue || p.inbox(w.key()) != "" {
		return nil
	}
	_, why := w.open(unansweredFor / 4)
	return why
}

// open subscribes, and returns the inbox, or "" when there is none within the given time. If the
// wait is over meanwhile, why is the reason.
func (w *waiter) open(within time.Duration) (inbox string, why error) {
	var opened string
	var failed error
	done := make(chan struct{})
	w.engine.post.open(w.key(), func(in string, err error) {
		opened, failed = in, err
		close(done)
	})
	timer := w.engine.timers.Start(within)
	defer w.engine.timers.Stop(timer)
	switch what, why := w.await(&awaited{answer: done, timer: timer.C}); {
	case what == waitOver:
		return "", why
	case what == answerCame && failed == nil:
		return opened, nil
	}
	return "", nil
}

// renewPlace continues with another token, because a token is used for one hold only, and the time
// of this hold is over.
func (w *waiter) renewPlace() {
	w.place.giveBack(w.engine)
	w.own = place{holder: w.place.holder}
	w.place = &w.own
	w.place.prepare(w)
}

// silence returns a channel that is signalled when the question that was just sent must be given up,
// because it has no answer. Only a Store without Steps is watched: it may ignore its context and
// hang. Other Stores give their calls up by themselves. The caller must call end.
func (w *waiter) silence() (expired <-chan time.Time, end func()) {
	if !w.engine.mayHang {
		return nil, func() {}
	}
	limit := calls.Timeout - time.Since(w.place.sentAt)
	if w.busySince.IsZero() { // nobody has answered yet
		limit = max(unansweredFor-time.Since(w.asked), 0) + lateBy
	}
	timer := w.engine.timers.Start(limit)
	return timer.C, func() { w.engine.timers.Stop(timer) }
}

// awaited are the events for which a waiter waits. A nil channel has no event.
type awaited struct {
	answer  <-chan struct{}  // an answer has come, or a call has ended
	bell    <-chan struct{}  // the mailbox of the place has news
	timer   <-chan time.Time // it is time to act without an event
	silence <-chan time.Time // an answer takes too long
	turns   <-chan turn      // the cohort serves the waiter; await stores the turn

	turn turn
}

// An event ends one call of await.
type event uint8

const (
	waitOver event = iota // the caller does not wait any longer
	answerCame
	bellRang
	timerFired
	silenceOver
	turnCame
)

// await waits until one of the events a happens. If the caller must not wait any longer, it returns
// waitOver, and the reason for giveUp.
func (w *waiter) await(a *awaited) (event, error) {
	for {
		select {
		case <-a.answer:
			return answerCame, nil
		case <-a.bell:
			return bellRang, nil
		case <-a.timer:
			return timerFired, nil
		case <-a.silence:
			return silenceOver, nil
		case a.turn = <-a.turns:
			return turnCame, nil
		case <-w.ctx.Done():
			return waitOver, w.ctx.Err()
		case <-w.expiry:
			return waitOver, errWaitOver
		case <-w.refused:
			if w.isRefused() {
				return waitOver, ErrClosed
			}
		}
	}
}

// admit counts the caller as a waiter. It returns false if too many callers wait already.
func (w *waiter) admit() bool {
	w.admitted = w.admitted || w.engine.waiters.enter(w.key(), w.engine.cfg.maxWaiters)
	return w.admitted
}

// key returns the key on the server, with the Locker's prefix.
func (w *waiter) key() string { return w.engine.cfg.prefix + w.rule.Key }
