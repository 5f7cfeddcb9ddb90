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

	// True if the last answer was that the key is busy. Then the fields below are up to date, and
	// events of the key matter.
	current      bool
	holder       store.Holder
	position     int // in the server's queue; 1 is the head; 0: unknown, or in no queue
	notListening bool
	rechecks     int
}

// prepare makes the place ready for the first acquire of w. It reserves a block of fences if w
// shares its hold; while nobody shares it yet, only for a grant from the server's queue. The token
// queues at the server if the rule allows that and this process receives messages. It also queues
// at a Store without messages, which may keep its waiters in order too. A waiter asks such a Store
// again and again.
func (p *place) prepare(w *waiter) {
	if p.claim.Owner == "" {
		p.claim = w.newClaim()
	}
	if w.cohort != nil && w.rule.Mode == Exclusive {
		p.claim.FenceCount, p.claim.Lone = w.engine.cfg.handoffs, w.first
	}
	post := &w.engine.post
	switch inbox := post.inbox(p.claim.Key); {
	case !w.engine.cfg.queue:
	case w.rule.Wait != NoWait && (post.notifier == nil || inbox != ""):
		p.prepareQueue(w, inbox) // without an inbox, enterQueue subscribes when the first question finds the key busy
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
	p.sentAt = now
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
// message e reports. The result certain is true if that time is certain enough.
//
// The result is the local time at which the anchor's call was sent, plus the time from that call to
// the grant by the server's clock. If no call was answered yet, the result is the time at which the
// first call was sent.
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

// toLocal converts a time from the server's clock to the local clock. It returns the earliest local
// time that is possible, and the uncertainty: by how much that time may be wrong. The uncertainty
// grows with the age of the anchor, because the rates of the clocks may differ by 1 %, as in
// config.drift.
func (c anchor) toLocal(server time.Time) (earliest time.Time, uncertainty time.Duration) {
	waited := server.Sub(c.server)
	slip := waited / 100
	return c.local.Add(waited - slip), 2 * slip
}

// giveBack gives up the token in the background. After that, the token cannot get the key through
// an unanswered call or through its entry in the queue. If the token already holds a lease, the key
// goes to the next waiter.
func (p *place) giveBack(e *Engine) {
	if p.posted {
		p.posted = false
		e.post.unregister(p.claim.Owner)
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
//	state          the server may have                      at the end of the wait
//	tokenNowhere   nothing, now and later                   nothing is sent
//	tokenQueued    the token's entry in the queue, or the   the next caller of the process gets the
//	               lease of a grant whose message is still  place; without one a release is sent
//	               to be read
//	tokenPossible  an entry or a lease                      a release is sent
//	tokenUnclear   anything, and a call may still arrive    a release is sent that leaves a tombstone
//
// The states are ordered: at the end of the wait, each state requires at least what the states
// before it require.
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
