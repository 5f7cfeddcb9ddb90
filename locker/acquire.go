package locker

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/latchkit/latchkit/internal/calls"
)

// acquisition is one call of Acquire. It first waits among the callers of this process (see
// cohort). It waits at the server only if it leads these callers, or shares no lease with them.
// While it waits for an answer of the Store, it also watches the caller's context, the time
// limit Wait, and whether the Locker is being closed. The table shows what can happen, and how
// the acquisition reacts:
//
//	granted   a lease; it is given back if the caller has left or the grant came too late
//	busy      wait in the server's queue for a message, or for a pause; then ask again with the
//	          same token
//	refused   an error if the refusal is permanent; otherwise ask again, for at most min(Wait, 1 s)
//	          while no holder was seen
//	unclear   ask again with the same token, which finds an earlier grant; time limit as above
//	an end    ctx or Wait ends, or the Locker closes: the call is abandoned. The token leaves the
//	          queue and is undone in the background, so that a late execution takes nothing. If the
//	          server grants the key meanwhile, the grant goes to the next waiter
type acquisition struct {
	engine   *Engine
	rule     Rule
	adaptive bool            // the Engine chose the TTL
	caller   context.Context // the caller's own context; the lease's contexts descend from it
	ctx      context.Context // the context of the calls: caller plus the Observer's additions
	began    time.Time
	expiry   <-chan time.Time // fires when rule.Wait is over
	meta     string           // the signed metadata
	finish   func(Outcome)    // ends what the Observer has begun; nil: there is no Observer
	// sighting is what the Observer learns about the holder; nil: no holder was seen yet.
	sighting *sighting
	// laterKey is a key that the caller's RunAll holds and that comes after rule.Key in the order
	// of keys. If there is such a key, this acquire must not wait. "" means that there is no such
	// key.
	laterKey string
	// alreadyReads is true if the caller already holds the key as a reader. Then this acquire must
	// not wait for a writer, because the writer waits for the caller.
	alreadyReads bool

	*ticket        // the token of the next question
	own     ticket // the first ticket; the field ticket points to it in most cases

	cohort *cohort   // nil: the caller shares no hold with other callers
	turn   chan turn // ends the wait in the cohort; made when the wait begins
	spare  chan turn // the channel turn of an earlier acquire, to be used again
	leads  bool      // the cohort waits until this acquisition gets a hold or abdicates

	recalled *departure // the background release whose hold this acquisition takes back; nil: none

	calls        int
	rounds       int           // how many round trips a quorum needed
	busySince    time.Time     // zero: no holder was seen
	heldSince    time.Time     // when the holder got the key; zero: unknown
	expectedWait time.Duration // the expected length of the wait
	failure      error         // the error of the last call that gave no answer
	admitted     bool          // the caller is counted as a waiter
	polled       bool          // the last question was sent after a pause of the Backoff
	pauses       func() (time.Duration, bool)
	stop         func() // ends pauses
}

// observe notifies the Observer that the acquire begins.
func (a *acquisition) observe() {
	a.ctx, a.finish = a.engine.cfg.observe(a.ctx, OpAcquire, a.rule)
}

// end notifies the Observer of the result (lease, err), and returns the same values.
func (a *acquisition) end(lease *Lease, err error) (*Lease, error) {
	if end := a.finish; end != nil {
		a.finish = nil
		finish(end, a.outcome(lease, err))
	}
	if err != nil {
		return nil, err
	}
	a.engine.examine.Do(func() { calls.Ask(&a.engine.calls, a.engine.warn) })
	return lease, nil
}

// isPrivate reports whether no other goroutine can still refer to an acquisition that has got a
// lease. Usually this is true: the cohort has removed the waiter before it sent the turn. The
// post has deleted the mailbox, because the token now holds the key. A Store gets only the
// claim. isPrivate returns false for readers and permits, because several acquisitions share
// their leases. It also returns false when the ticket is part of another acquisition.
func (a *acquisition) isPrivate() bool {
	return a.rule.Mode == Exclusive && a.rule.Limit == 0 && a.ticket == &a.own
}

// recycle keeps the memory of an ended acquisition for a later acquisition of the same Engine. This
// memory is a quarter of what a lock allocates. It includes the channel "turn". A channel that was
// made in a testing/synctest bubble must stay in the bubble, so each Engine reuses only its own
// channels.
func (a *acquisition) recycle() {
	e, spare := a.engine, a.spare
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
	a.ticket = &a.own
	if err := a.caller.Err(); err != nil {
		return nil, a.fail(err, 0)
	}
	if a.engine.isClosing() {
		return nil, a.fail(ErrClosed, 0)
	}
	within, err := a.checkNested()
	if err != nil {
		return nil, err
	}
	if within != nil && a.rule.hasOwnTerms() {
		a.alreadyReads, a.rule.Wait = true, NoWait
	}
	if a.rule.Wait > 0 {
		timer := a.engine.timers.Start(a.rule.Wait)
		defer a.engine.timers.Stop(timer)
		a.expiry = timer.C
	}
	a.describe()
	defer func() { a.close(lease, err) }() // deferred, so that close also runs when a Backoff panics
	if within != nil && !a.alreadyReads {
		if l := a.readAlong(within); l != nil {
			return l, nil
		} // the lease was lost meanwhile
	}
	t, ok := a.engine.cohorts.share(a.rule, a.adaptive)
	switch {
	case ok:
		return a.waitInCohort(t)
	case a.rule.Mode == Shared:
		a.cohort = &cohort{terms: t} // no lease to share, so the caller gets a cohort of its own
	}
	return a.start()
}

// start waits for a background release of the key, and then sends the first question.
func (a *acquisition) start() (*Lease, error) {
	if err := a.awaitDeparture(); err != nil {
		return nil, err
	}
	if a.rule.Mode == Shared {
		if err := a.subscribeFirst(); err != nil {
			return nil, err
		}
	}
	a.prepare()
	return a.lead(nil)
}

// describe determines the metadata of the lease, once, and signs it.
func (a *acquisition) describe() {
	if a.meta != "" {
		return
	}
	if a.meta = a.rule.Metadata; a.meta == "" && a.engine.cfg.metadata != nil {
		a.meta = a.engine.cfg.metadata(a.ctx)
	}
	a.meta = a.engine.cfg.sign(a.ctx, shorten(a.meta, maxMetadataBytes))
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

// close cleans up after the acquire, whose result is (lease, err). If there is no lease, close also
// gives up the token and the lead of the cohort.
func (a *acquisition) close(lease *Lease, err error) {
	defer a.endWait()
	if lease == nil {
		if a.leads {
			a.engine.cohorts.abdicate(a, err)
		}
		a.giveBack()
	}
	if a.admitted {
		a.engine.waiters.dismiss(a.key())
	}
	if a.stop != nil {
		a.stop()
	}
}

// admit counts the caller as a waiter. It returns false if too many callers wait already.
func (a *acquisition) admit() bool {
	a.admitted = a.admitted || a.engine.waiters.enter(a.key(), a.engine.cfg.maxWaiters)
	return a.admitted
}

// key returns the key on the server, with the Locker's prefix.
func (a *acquisition) key() string { return a.engine.cfg.prefix + a.rule.Key }
