package locker

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// ticket is one token on its way to a hold. It contains the claim that is sent to the Store with
// the token, and what the Store answered last. A ticket belongs to one acquisition. When the leader
// of a cohort gives up, its ticket and the place in the server's queue can go to another
// acquisition.
type ticket struct {
	// The claim does not change after it was queued, because the server finds an entry of the queue
	// by the full text of the entry.
	claim     store.Claim
	token     token     // what the server may know of the token
	firstSent time.Time // when the token was first sent; zero if events may have been lost since
	sentAt    time.Time // when the token was last sent
	box       mailbox   // the events of the token
	expected  bool      // the post has registered the token
	clock     anchor    // ties the server's clock to the local clock; made from the last answer

	// True if the last answer was that the key is busy. Then the fields below are up to date, and
	// events of the key matter.
	current      bool
	holder       store.Holder
	place        int
	notListening bool
	rechecks     int
	rushed       int // the number of questions that followed without a pause
}

// newClaim returns a claim of the caller with a new token, which does not queue.
func (c *caller) newClaim() store.Claim {
	return store.Claim{
		Key: c.key(), Owner: rand.Text(), Mode: c.rule.Mode, TTL: c.rule.leaseTTL(), FenceCount: 1,
		Limit: c.rule.Limit, Weight: c.rule.Weight, Metadata: c.meta, OnceFor: c.rule.OnceFor,
	}
}

// prepare makes the ticket ready for the first acquire of the caller c. It reserves a block of
// fences if c shares its hold. The ticket queues at the server if the rule allows that and this
// process receives messages. It also queues at a Store without messages, which may keep its waiters
// in order too. A waiter asks such a Store again and again.
func (t *ticket) prepare(c *caller, shares bool) {
	if t.claim = c.newClaim(); shares && c.rule.Mode == Exclusive {
		t.claim.FenceCount = c.engine.cfg.handoffs
	}
	p := &c.engine.post
	switch inbox := p.inbox(t.claim.Key); {
	case !c.engine.cfg.queue:
	case c.rule.Wait != NoWait && (p.notifier == nil || inbox != ""):
		t.prepareQueue(c, inbox) // without an inbox, listen subscribes when the first question finds the key busy
	case c.rule.Wait == NoWait && c.rule.Mode == Shared:
		t.expectAt(c.engine, inbox)
	}
}

// prepareQueue prepares the ticket for the queue at the server. It makes the post expect the
// ticket's grant at inbox. "" means no inbox.
func (t *ticket) prepareQueue(c *caller, inbox string) {
	t.claim.Queue, t.claim.HandoffTTL = true, t.claim.TTL
	// If the holder will renew the lease, the server first hands it over for a short time. But a
	// lease with KeepFor is handed over for its full time, because it must outlast a crash of its
	// holder.
	if c.engine.cfg.renewal && c.rule.KeepFor == 0 && (c.rule.EndAfter == 0 || c.rule.EndAfter > t.claim.TTL) {
		t.claim.HandoffTTL = min(t.claim.TTL, longestHand)
	}
	t.expectAt(c.engine, inbox)
}

// expectAt makes the post expect the events about the ticket at inbox. "" means no inbox.
func (t *ticket) expectAt(e *Engine, inbox string) {
	if t.claim.Inbox = inbox; inbox != "" {
		t.box.key, t.box.inbox, t.expected = t.claim.Key, inbox, true
		e.post.register(t.claim.Owner, &t.box)
	}
}

// listen is called when the first question has found the key busy. It subscribes, and prepares the
// ticket for the queue.
func (a *acquisition) listen() error {
	inbox, err := a.open(unansweredFor)
	if err != nil {
		return err
	}
	if a.caller.rule.Mode == Shared && inbox != a.ticket.claim.Inbox {
		a.renewTicket() // the server has registered the token as a reader with the old inbox
	}
	if !a.ticket.claim.Queue {
		a.ticket.prepareQueue(&a.caller, inbox)
	}
	return nil
}

// open subscribes, and returns the inbox, or "" when there is none within the given time.
func (a *acquisition) open(within time.Duration) (string, error) {
	e, key := a.caller.engine, a.caller.key()
	var inbox string
	var failed error
	opened := make(chan struct{})
	e.post.open(key, func(in string, err error) {
		inbox, failed = in, err
		close(opened)
	})
	timer := e.timers.Start(within)
	defer e.timers.Stop(timer)
	switch ready, over := a.caller.await(&awaited{answer: opened, timer: timer.C}); {
	case ready == waitOver:
		return "", a.giveUp(over)
	case ready == answerCame && failed == nil:
		return inbox, nil
	}
	return "", nil // the subscription has failed or takes too long, so the caller waits without messages
}

// giveBack gives up the token in the background. After that, the token cannot get the key
// through an unanswered call or through its place in the queue. If the token already holds a
// lease, the key goes to the next waiter.
func (t *ticket) giveBack(e *Engine) {
	t.stopExpecting(e)
	if t.token.state == tokenNowhere {
		return
	}
	claim := t.claim
	claim.TombstoneTTL = calls.UndoFor(t.token.state == tokenUnclear, claim.TTL)
	lives := max(claim.TTL, claim.TombstoneTTL)
	if claim.Queue {
		lives = max(lives, calls.QueueLife)
	}
	e.undo(calls.Chore{Claim: claim, Useless: time.Now().Add(lives)})
	t.token = token{}
}

// stopExpecting makes the post forget the token. It is called when the ticket does not wait any
// more.
func (t *ticket) stopExpecting(e *Engine) {
	if t.expected {
		t.expected = false
		e.post.unregister(t.claim.Owner)
	}
}

// renewTicket continues with another token, because a token is used for one hold only, and the time
// of this hold is over.
func (a *acquisition) renewTicket() {
	a.ticket.giveBack(a.caller.engine)
	a.own = ticket{holder: a.ticket.holder}
	a.ticket = &a.own
	a.ticket.prepare(&a.caller, a.cohort != nil)
}

// handOver takes the ticket away from the acquisition, for another acquisition. The acquisition
// itself keeps only what it knows about the holder.
func (a *acquisition) handOver() *ticket {
	t := a.ticket
	a.own.holder, a.own.place = t.holder, t.place
	a.ticket = &ticket{holder: t.holder, place: t.place}
	return t
}

// errNoAnswer is the error of a call that was abandoned without an answer.
var errNoAnswer = errors.New("no answer")

// silence returns a channel for an acquire that begins now. The channel is signalled when the
// acquire must be given up because it has no answer. Only a Store without Steps is watched, because
// such a Store may ignore its context and hang. Other Stores give up their calls by themselves. The
// caller must call end.
func (e *Engine) silence() (expired <-chan time.Time, end func()) {
	if !e.mayHang {
		return nil, func() {}
	}
	timer := e.timers.Start(calls.Timeout)
	return timer.C, func() { e.timers.Stop(timer) }
}

// silence returns a channel like that of the Engine, for the question that was just sent. If
// nobody has answered yet, the caller expects to be back after unansweredFor. This time includes
// the subscription of a reader before its first question. A Store with Steps gives a question a
// limit of its own, also a repeated one, because its error says more. The time for which a caller
// has waited for its turn in this process does not count.
func (a *acquisition) silence() (expired <-chan time.Time, end func()) {
	e, spent := a.caller.engine, a.waiting.subscribing
	switch {
	case e.mayHang && a.waiting.busySince.IsZero():
		spent = time.Since(a.waiting.asked)
	case e.mayHang, a.waiting.calls > 1, spent < unansweredFor/20:
		return e.silence()
	}
	const grace = 150 * time.Millisecond // of the 250 ms by which a caller may be late
	timer := e.timers.Start(max(unansweredFor-spent, 0) + grace)
	return timer.C, func() { e.timers.Stop(timer) }
}

// tokenState is what the server may have stored for a token that has no hold in this process:
//
//	state          the server may have                      at the end of the wait
//	tokenNowhere   nothing, now and later                   nothing is sent
//	tokenQueued    the token's entry in the queue, or the   the next caller of the process gets the
//	               lease of a grant whose message is still  ticket; without one a release is sent
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
	// Messages that the acquisition has read.
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
	readGrant:     {tokenPossible, tokenPossible, tokenPossible, tokenUnclear}, // only this acquisition has read the grant
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

// readMessage records the event e of a message that the acquisition has read while no call is under
// way.
func (t *token) readMessage(e tokenEvent) { t.state = tokenMoves[e][t.state] }
