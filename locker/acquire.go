package locker

import (
	"context"
	"time"
	"unicode/utf8"
)

// acquisition is one call of Acquire. It first waits among the callers of this process (see
// cohort). It waits at the server only if it leads these callers, or shares no lease with them.
// While it waits for an answer of the Store, it also watches the caller's context, the time limit
// Wait, and whether the Locker is being closed or drained. The table shows what can happen, and how
// the acquisition reacts:
//
//	granted   a lease; it is given back if the caller has left or the grant came too late
//	busy      wait in the server's queue for a message, or for a pause; then ask again with the
//	          same token
//	refused   an error if the refusal is permanent; otherwise ask again, for at most min(Wait, 1 s)
//	          while no holder was seen
//	unclear   ask again with the same token, which finds an earlier grant; time limit as above
//	an end    ctx or Wait ends, or the Locker closes or drains: the call is abandoned. The token leaves the
//	          queue and is undone in the background, so that a late execution takes nothing. If the
//	          server grants the key meanwhile, the grant goes to the next waiter
type acquisition struct {
	caller  caller
	ticket  *ticket // the token of the next question
	own     ticket  // the first ticket; the field ticket points to it in most cases
	waiting waiting

	cohort *cohort   // nil: the caller shares no hold with other callers
	turn   chan turn // ends the wait in the cohort; made when the wait begins
	spare  chan turn // the channel turn of an earlier acquire, to be used again
	leads  bool      // the cohort waits until this acquisition gets a hold or abdicates
}

// caller is what one call of Acquire wants, and how long it waits.
type caller struct {
	engine   *Engine
	rule     Rule
	adaptive bool            // the Engine chose the TTL
	ctx      context.Context // the caller's own context; the lease's contexts descend from it
	observed context.Context // the context of the calls: ctx plus the Observer's additions
	began    time.Time
	expiry   <-chan time.Time // fires when rule.Wait is over
	meta     string           // the signed metadata: see config.sign
	refused  <-chan struct{}  // closed when the caller must not wait any longer: see isRefused
	finish   func(Outcome)    // ends what the Observer has begun; nil: there is no Observer
	// laterKey is a key that the caller's RunAll holds and that comes after rule.Key in the order
	// of keys. It is rule.Key itself if the caller holds units of this semaphore. If there is such
	// a key, this acquire must not wait. "" means that there is no such key.
	laterKey string
	// alreadyReads is true if the caller already holds the key as a reader. Then this acquire must
	// not wait for a writer, because the writer waits for the caller.
	alreadyReads bool
}

// awaited are events for which a caller waits. A nil channel has no event.
type awaited struct {
	answer  <-chan struct{}  // an answer has come, or a call has ended
	bell    <-chan struct{}  // the mailbox of the ticket has news
	timer   <-chan time.Time // it is time to act without an event
	silence <-chan time.Time // an answer takes too long
	turns   <-chan turn      // the cohort serves the caller; await stores the turn

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

// await waits until one of the events w happens, or until the caller must not wait any longer:
// because its context or its Wait has ended, or because the Locker is closing or drains. In these
// cases it returns waitOver, and the reason for giveUp.
func (c *caller) await(w *awaited) (event, error) {
	for {
		select {
		case <-w.answer:
			return answerCame, nil
		case <-w.bell:
			return bellRang, nil
		case <-w.timer:
			return timerFired, nil
		case <-w.silence:
			return silenceOver, nil
		case w.turn = <-w.turns:
			return turnCame, nil
		case <-c.ctx.Done():
			return waitOver, c.ctx.Err()
		case <-c.expiry:
			return waitOver, errWaitOver
		case <-c.refused:
			if c.isRefused() {
				return waitOver, ErrClosed
			}
		}
	}
}

// waiting is what one call of Acquire has seen while it waited.
type waiting struct {
	calls     int
	rounds    int           // how many round trips a quorum needed
	busySince time.Time     // zero: no holder was seen
	heldSince time.Time     // when the holder got the key; zero: unknown
	ahead     int           // how many callers and other processes are known to wait in front of this caller
	expected  time.Duration // the expected length of the wait
	failure   error         // the error of the last call that gave no answer
	admitted  bool          // the caller is counted as a waiter
	polled    bool          // the last question was sent after a pause of the Backoff
	asked     time.Time     // when the server was first asked; zero: not yet
	// subscribing is how long a reader has waited for its subscription before its first question.
	subscribing time.Duration
	pauses      func() (time.Duration, bool)
	stop        func() // ends pauses
	// sighting is what the Observer learns about the holder; nil: no holder was seen yet.
	sighting *sighting
}

// observe notifies the Observer that the acquire begins.
func (c *caller) observe() {
	c.observed, c.finish = c.engine.cfg.observe(c.observed, OpAcquire, c.rule)
}

// report tells the Observer the result (lease, err), and returns the same values.
func (a *acquisition) report(lease *Lease, err error) (*Lease, error) {
	if end := a.caller.finish; end != nil {
		a.caller.finish = nil
		finish(end, a.outcome(lease, err))
	}
	if err != nil {
		return nil, err
	}
	a.caller.engine.examine.Do(func() { a.caller.engine.calls.Do(a.caller.engine.warn) })
	return lease, nil
}

// recycle keeps the memory of an acquisition that has got a lease for a later acquisition of the
// same Engine. This memory is a quarter of what a lock allocates. It includes the channel "turn". A
// channel that was made in a testing/synctest bubble must stay in the bubble, so each Engine reuses
// only its own channels.
//
// No other goroutine can still refer to the acquisition of a lock: the cohort has removed the
// waiter before it sent the turn. The post has deleted the mailbox, because the token now holds the
// key. A Store gets only the claim. The own ticket was not handed over, because only a leader
// without a lease does that. Readers and permits are not recycled, because several acquisitions
// share their leases.
func (a *acquisition) recycle() {
	if a.caller.rule.Mode == Shared || a.caller.rule.Limit > 0 {
		return
	}
	e, spare := a.caller.engine, a.spare
	if a.turn != nil {
		spare = a.turn // the channel is empty, because the waiter has received its only turn
	}
	*a = acquisition{spare: spare}
	e.acquisitions.Put(a)
}

// expectTurn prepares the channel turn, for the wait in the cohort.
func (a *acquisition) expectTurn() {
	if a.turn, a.spare = a.spare, nil; a.turn == nil {
		a.turn = make(chan turn, 1)
	}
}

// run does the work of Acquire: it waits for the lease, and returns the lease or an error.
func (a *acquisition) run() (lease *Lease, err error) {
	if err := a.caller.ctx.Err(); err != nil {
		return nil, a.fail(err, 0)
	}
	if a.caller.isRefused() {
		return nil, a.fail(ErrClosed, 0)
	}
	within, err := a.caller.checkNested()
	if err != nil {
		return nil, a.fail(err, 0)
	}
	if within != nil && a.caller.rule.hasOwnTerms() {
		a.caller.alreadyReads, a.caller.rule.Wait = true, NoWait
	}
	if a.caller.rule.Wait > 0 {
		timer := a.caller.engine.timers.Start(a.caller.rule.Wait)
		defer a.caller.engine.timers.Stop(timer)
		a.caller.expiry = timer.C
	}
	a.caller.describe()
	defer func() { a.cleanUp(lease, err) }() // deferred, so that cleanUp also runs when a Backoff panics
	if within != nil && !a.caller.alreadyReads {
		if l := a.readAlong(within); l != nil {
			return l, nil
		}
		// The lease was lost meanwhile, or nobody knows whether its downgrade was made: then this
		// acquire must not wait for it.
		if within.state.endError() == nil {
			a.caller.alreadyReads, a.caller.rule.Wait = true, NoWait
		}
	}
	t, ok := a.caller.engine.cohorts.sharedTerms(a.caller.rule, a.caller.adaptive)
	switch {
	case ok:
		return a.joinCohort(t)
	case a.caller.rule.Mode == Shared:
		a.cohort = &cohort{terms: t} // no lease to share, so the caller gets a cohort of its own
	}
	return a.start()
}

// start sends the first question. A reader subscribes before.
func (a *acquisition) start() (*Lease, error) {
	if a.caller.rule.Mode == Shared {
		if err := a.subscribeFirst(); err != nil {
			return nil, err
		}
	}
	a.ticket.prepare(&a.caller, a.cohort != nil)
	return a.goOn(a.ask())
}

// describe determines the metadata of the lease, once, and signs it.
func (c *caller) describe() {
	if c.meta != "" {
		return
	}
	if c.meta = c.rule.Metadata; c.meta == "" && c.engine.cfg.metadata != nil {
		c.meta = c.engine.cfg.metadata(c.observed)
	}
	c.meta = c.engine.cfg.sign(c.observed, shorten(c.meta, maxMetadataBytes))
}

// shorten cuts text to at most n bytes, and not within a character.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for cut := n; cut > max(n-utf8.UTFMax, 0); cut-- {
		if utf8.RuneStart(text[cut]) {
			return text[:cut]
		}
	}
	return text[:n] // text is not UTF-8, so it is cut at any byte
}

// cleanUp cleans up after the acquire, whose result is (lease, err). It gives back what an
// unsuccessful acquire holds: the token and the lead of the cohort.
func (a *acquisition) cleanUp(lease *Lease, err error) {
	defer a.waiting.endWait()
	if lease == nil {
		if a.leads {
			a.caller.engine.cohorts.abdicate(a, err)
		}
		a.ticket.giveBack(a.caller.engine)
	}
	if a.waiting.admitted {
		a.caller.engine.waiters.dismiss(a.caller.key())
	}
	if a.waiting.stop != nil {
		a.waiting.stop()
	}
}

// admit counts the caller as a waiter. It returns false if too many callers wait already.
func (a *acquisition) admit() bool {
	a.waiting.admitted = a.waiting.admitted || a.caller.engine.waiters.enter(a.caller.key(), a.caller.engine.cfg.maxWaiters)
	return a.waiting.admitted
}

// key returns the key on the server, with the Locker's prefix.
func (c *caller) key() string { return c.engine.cfg.prefix + c.rule.Key }
