package locker

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// A place is what the server knows of a waiter: one token on its way to a hold, with the claim that
// is sent to the Store, and what the Store answered last. It belongs to one waiter. When the leader
// of a cohort gives up, its place in the server's queue goes to the next waiter, as a whole.
type place struct {
	// The claim does not change after it was queued, because the server finds an entry of the queue
	// by the full text of the entry.
	claim     store.Claim
	token     token     // what the server may know of the token
	firstSent time.Time // when the token was first sent; zero if events may have been lost since
	sentAt    time.Time // when the token was last sent
	box       mailbox   // the events of the token
	posted    bool      // the post has registered the token
	clock     anchor    // ties the server's clock to the local clock; made from the last answer
	// handed is the fence of a grant that a message has brought too late to be sure of it, until the
	// next answer shows whether the token still holds the key.
	handed uint64

	// True if the last answer was that the key is busy. Then the fields below are up to date, and
	// events of the key matter.
	current      bool
	holder       store.Holder
	position     int // in the server's queue; 1 is the head; 0: unknown, or in no queue
	notListening bool
	rechecks     int
	askAt        time.Time // when the next question is due; zero: it was not decided since the last one
	// question is under way, and the leader that sent it has given up. The next leader takes its answer:
	// if each leader sent a question of its own, a process whose leaders give up faster than the server
	// answers would be granted the key for nobody, again and again.
	question *calls.Future
}

// prepare makes the place ready for the first acquire of w. It reserves a block of fences if w
// shares its hold; while nobody shares it yet, only for a grant from the server's queue. The token
// queues at once if this process receives messages, or if the Store sends none; otherwise enterQueue
// subscribes when the first question finds the key busy.
func (p *place) prepare(w *waiter) {
	p.claim = w.newClaim()
	if w.cohort != nil && w.rule.Mode == Exclusive {
		p.claim.FenceCount, p.claim.Lone = w.engine.cfg.handoffs, w.first
	}
	post := &w.engine.post
	switch inbox := post.inbox(p.claim.Key); {
	case !w.engine.cfg.queue:
	case w.rule.Wait != NoWait && (post.notifier == nil || inbox != ""):
		p.prepareQueue(w, inbox)
	case w.rule.Wait == NoWait && w.rule.Mode == Shared:
		p.expectAt(w.engine, inbox)
	}
}

// newClaim returns a claim of the caller with a new token, which does not queue.
func (w *waiter) newClaim() store.Claim {
	return store.Claim{
		Key: w.key(), Owner: rand.Text(), Mode: w.rule.Mode, TTL: w.rule.leaseTTL(), FenceCount: 1,
		Limit: w.rule.Limit, Weight: w.rule.Weight, Metadata: w.meta, OnceFor: w.rule.OnceFor,
	}
}

// prepareQueue prepares the place for the queue at the server. It makes the post expect the token's
// grant at inbox. "" means no inbox.
func (p *place) prepareQueue(w *waiter, inbox string) {
	p.claim.Queue, p.claim.HandoffTTL = true, p.claim.TTL
	// If the holder will renew the lease, the server first hands it over for a short time. But a
	// lease with KeepFor is handed over for its full time, because it must outlast a crash of its
	// holder.
	if w.engine.cfg.renewal && w.rule.KeepFor == 0 && (w.rule.EndAfter == 0 || w.rule.EndAfter > p.claim.TTL) {
		p.claim.HandoffTTL = min(p.claim.TTL, longestHand)
	}
	p.expectAt(w.engine, inbox)
}

// expectAt makes the post expect the events about the token at inbox. "" means no inbox.
func (p *place) expectAt(e *Engine, inbox string) {
	if p.claim.Inbox = inbox; inbox != "" {
		p.box.key, p.box.inbox, p.posted = p.claim.Key, inbox, true
		e.post.register(p.claim.Owner, &p.box)
	}
}

// send notes that a question with the token is sent at the time now.
func (p *place) send(now time.Time) {
	p.sentAt, p.askAt = now, time.Time{}
	if p.token.ask() {
		p.firstSent = now
	}
}

// abandon gives up the question q, which has no answer yet.
func (p *place) abandon(q *calls.Future) {
	if q.Abandon() {
		p.token.endCall(callLost)
	} else {
		p.token.endCall(callNotSent)
	}
}

// eventOf converts g, an answer of the Store, to an event of the token.
func (p *place) eventOf(g store.Grant) tokenEvent {
	switch {
	case g.Doubled:
		return callLost // of one of the two calls
	case g.State == store.Granted:
		return answerGranted
	case g.State == store.Done && p.token.previous != tokenNowhere:
		return answerParts // a reader or a permit may have been handed its part before another holder completed the work
	case g.State != store.Busy:
		return answerOver
	case p.claim.Queue:
		return answerQueued
	case g.Unsettled:
		return answerParts
	}
	return answerAside
}

// noteBusy records the answer g, that the key is busy.
func (p *place) noteBusy(g store.Grant) {
	p.holder, p.position, p.notListening, p.current = g.Holder, g.Place, g.NotListening, true
	p.clock = anchor{local: p.sentAt, server: g.At}
}

// grantTime returns the earliest local time at which the server can have made the grant that the
// message e reports, and whether it is certain enough: by the anchor of the last answer, or the
// time at which the first call was sent.
func (p *place) grantTime(engine *Engine, e store.Event) (earliest time.Time, certain bool) {
	if engine.can.NeedsConfirmation {
		// The message does not show that a replica has acknowledged the grant. So the waiter
		// sends an acquire, which finds the grant and waits for the replica.
		return time.Time{}, false
	}
	earliest, off := p.firstSent, time.Duration(0)
	if !p.clock.server.IsZero() {
		earliest, off = p.clock.toLocal(e.At)
	}
	age := time.Since(earliest)
	return earliest, !earliest.IsZero() && age >= 0 && age <= freshGrant+off
}

// anchor ties the server's clock to the local clock. At the moment when the server's clock showed
// anchor.server, the local clock showed anchor.local or a later time.
type anchor struct{ local, server time.Time }

// toLocal converts a time from the server's clock to the earliest local time that is possible, and
// returns by how much that may be wrong, because the rates of the clocks may differ by 1 %, as in
// config.drift.
func (c anchor) toLocal(server time.Time) (earliest time.Time, uncertainty time.Duration) {
	waited := server.Sub(c.server)
	slip := waited / 100
	return c.local.Add(waited - slip), 2 * slip
}

// giveBack gives up the token in the background. After that, it cannot get the key through an
// unanswered call or through its entry in the queue; a lease that it holds goes to the next waiter.
func (p *place) giveBack(e *Engine) {
	if p.posted {
		p.posted = false
		e.post.unregister(p.claim.Owner)
	}
	if p.question != nil {
		p.abandon(p.question)
		p.question = nil
	}
	if p.token.state == tokenNowhere {
		return
	}
	claim := p.claim
	claim.TombstoneTTL = calls.UndoFor(p.token.state == tokenUnclear, claim.TTL)
	lives := max(claim.TTL, claim.TombstoneTTL)
	if claim.Queue {
		lives = max(lives, calls.QueueLife)
	}
	e.undo(calls.Chore{Claim: claim, Useless: time.Now().Add(lives)})
	p.token = token{}
}

// handOver takes the place away from w, for the next leader of the cohort. The waiter itself keeps
// only what it knows about the holder.
func (w *waiter) handOver() *place {
	p := w.place
	w.place = &place{holder: p.holder, position: p.position}
	return p
}

// errNoAnswer is the error of a call that was abandoned without an answer.
var errNoAnswer = errors.New("no answer")

// tokenState is what the server may have stored for a token that has no hold in this process:
//
//	tokenNowhere   nothing, now and later
//	tokenQueued    the token's entry in the queue, or the lease of a grant whose message is still to
//	               be read
//	tokenPossible  an entry or a lease
//	tokenUnclear   anything, and a call may still arrive
//
// At the end of the wait, each state requires at least what the states before it require: nothing, a
// release, and a release that leaves a tombstone.
type tokenState uint8

const (
	tokenNowhere tokenState = iota
	tokenQueued
	tokenPossible
	tokenUnclear
	tokenStates
)

// tokenEvent is an event that moves a token from one state to another.
type tokenEvent uint8

const (
	// Events that end a call.
	callNotSent tokenEvent = iota // the call was taken back before it was sent
	callRefused                   // a Refusal: the call had no effect
	// callLost: the call was abandoned, or its error does not prove that it had no effect.
	callLost
	answerQueued // the key is busy, and the token is in the queue
	answerAside  // the key is busy, and the token is in no queue
	// answerParts: the key is busy, and some nodes of the Store may hold the key for the token.
	answerParts
	answerGranted // a lease
	// answerOver: the answer is Undone, Revoked or Done, so the server has stored nothing for the
	// token.
	answerOver
	// Messages that the waiter has read.
	readGrant
	readDone
	tokenEvents
)

// tokenMoves[event][state] is the state after the event, if the token was in state before the call
// or the message. An unclear token stays unclear, whatever the server answers to later calls,
// because the call without an answer may still arrive.
var tokenMoves = [tokenEvents][tokenStates]tokenState{
	//              from: nowhere      queued         possible       unclear
	callNotSent:   {tokenNowhere, tokenQueued, tokenPossible, tokenUnclear},
	callRefused:   {tokenNowhere, tokenPossible, tokenPossible, tokenUnclear}, // a restarted server has lost the queue
	callLost:      {tokenUnclear, tokenUnclear, tokenUnclear, tokenUnclear},
	answerQueued:  {tokenQueued, tokenQueued, tokenQueued, tokenUnclear},
	answerAside:   {tokenNowhere, tokenNowhere, tokenNowhere, tokenUnclear},
	answerParts:   {tokenPossible, tokenPossible, tokenPossible, tokenUnclear},
	answerGranted: {tokenPossible, tokenPossible, tokenPossible, tokenUnclear},
	answerOver:    {tokenNowhere, tokenNowhere, tokenNowhere, tokenUnclear},
	readGrant:     {tokenPossible, tokenPossible, tokenPossible, tokenUnclear}, // only this waiter has read the grant
	readDone:      {tokenNowhere, tokenNowhere, tokenNowhere, tokenUnclear},
}

// token follows one token through its calls and messages.
type token struct {
	state    tokenState // while a call is under way: tokenUnclear
	previous tokenState // the state before the call that is under way, or before the last call
}

// ask begins a call with the token. It returns true if the server has stored nothing for the token
// before this call.
func (t *token) ask() (first bool) {
	t.state, t.previous = tokenUnclear, t.state
	return t.previous == tokenNowhere
}

// endCall ends the call that is under way, with the event e.
func (t *token) endCall(e tokenEvent) { t.state = tokenMoves[e][t.previous] }

// readMessage records the event e of a message that the waiter has read while no call is under
// way.
func (t *token) readMessage(e tokenEvent) { t.state = tokenMoves[e][t.state] }

// hold is what the server knows as one lease: one token, from its grant to its release or loss.
// Usually one [Lease] uses a hold. In a streak, several Leases use it one after the other, each
// with a fence of its own from the block.
type hold struct {
	engine   *Engine
	claim    store.Claim // the claim that was granted; for a reader, with the fence of its phase
	fence    uint64      // the first fence of the block
	start    instant     // the time from which deadlines count; it is not later than the grant
	received instant     // when this process received the grant; the time of a streak counts from then
	// keepUntil is the time until which Rule.KeepFor keeps the key, counted from when this process
	// received the grant. 0: the Rule has no KeepFor. It is set before the grant is published;
	// keepNothing clears it under the keeper's mutex.
	keepUntil instant
	block     int32 // the number of fences in the block

	// The small fields stay together, because many holds are held at once.
	unclear bool // an acquire of claim.Owner is unanswered, so the release must undo it
	posted  bool // a message about claim.Owner may still arrive

	// Guarded by the cohorts' mutex:
	closed bool    // Shared: no further Lease may use the hold
	ended  bool    // the hold is being released, or is lost
	used   int32   // how many fences of the block were given out
	users  int32   // if Shared: how many Leases use the hold, or are about to use it
	cohort *cohort // the callers that may get the hold by hand-off; nil: none
	// signed is the metadata of the hold's user, or of the first of several readers, signed: with
	// the holder's traceparent in front (store.Sign); nothing is authenticated.
	signed string

	renewal renewal // guarded by the keeper's mutex
}

// holdWithLease is a hold together with its first Lease, in one allocation. Most holds have only
// one Lease.
type holdWithLease struct {
	hold  hold
	lease Lease
}

// handleLoss cleans up after a hold that has ended without a release, for the given reason. The
// parameter users has the Leases that used the hold; during a hand-off there are none. If mayBeOurs
// is true, the server may still keep the lease.
func (h *hold) handleLoss(users []*Lease, reason error, mayBeOurs bool) {
	begun := 0
	for _, l := range users {
		l.lose(reason) // no effect if a look at the context has ended l already
		if l.state.endError() == ErrReleased {
			begun++
		}
	}
	if begun > 0 && begun == len(users) {
		return // a Release has begun, and cleans up
	}
	h.engine.post.forget(h)
	if mayBeOurs || h.unclear || h.claim.Queue { // an unconfirmed hold still has its entry in the queue
		release, _ := h.engine.keeper.retire(h)
		h.engine.undo(release)
	}
	h.engine.cohorts.dropHold(h)
}

// releaseUnused releases in the background a hold that no Lease uses.
func (h *hold) releaseUnused() {
	release, _ := h.engine.keeper.retire(h)
	h.engine.post.forget(h)
	h.engine.undo(release)
}
