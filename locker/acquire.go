package locker

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/latchkit/latchkit/internal/calls"
)

// acquisition is one call of Acquire. It waits among the callers of this process first (see cohort), and at the server
// when it leads them or shares nothing with them. Each question to the Store is raced against the end of the caller's
// context, of the wait, and of the Locker. What may come first, and what is done:
//
//	granted        a lease, unless the caller is gone or the grant came too late: then it is given back
//	busy           in the server's queue until told, or a pause; then again with the same token
//	refused        returned when permanent; otherwise again, for at most min(Wait, 1 s) while no holder was seen
//	unclear        again with the same token, which finds the grant if there was one; the same bound
//	ctx, Wait or Close end first   the call is abandoned: the token leaves the queue and is undone in the background, so
//	               that a late execution takes nothing, and a grant that crossed it goes to the next
type acquisition struct {
	engine   *Engine
	rule     Rule
	adaptive bool            // the Engine chose the TTL
	caller   context.Context // as the caller gave it: the lease's contexts descend from it
	ctx      context.Context // the same with the Observer's additions, for the calls
	began    time.Time
	expiry   <-chan time.Time // rule.Wait is over
	meta     string
	finish   func(Outcome) // tells the Observer that it has ended; nil without one
	behind   string        // what its RunAll holds and sorts behind rule.Key, so that it must not wait; "": nothing
	inside   bool          // the caller reads the key already, so that a writer who is waited for would wait for it
	pass     *Delegation   // of who joins a lease

	*ticket        // the token that is asked with
	own     ticket // mostly it is this one

	cohort *cohort   // nil: shares nothing
	turn   chan turn // ends the wait in the cohort; made when it begins
	leads  bool      // the cohort waits for this one to get a hold, or to abdicate

	calls     int
	rounds    int           // round trips that a quorum needed
	busySince time.Time     // zero: no holder was seen
	heldSince time.Time     // when the holder got the key, as far as that is known
	expects   time.Duration // how long the wait should take
	failure   error         // of the last call that gave no answer
	admitted  bool          // counted as a waiter
	polled    bool          // the last question followed a pause of the Backoff
	pauses    func() (time.Duration, bool)
	stop      func() // ends pauses
}

// observe tells the Observer that it begins.
func (a *acquisition) observe() {
	a.ctx, a.finish = a.engine.cfg.observe(a.ctx, OpAcquire, a.rule)
}

// end tells the Observer what came out, which it returns.
func (a *acquisition) end(lease *Lease, err error) (*Lease, error) {
	if end := a.finish; end != nil {
		a.finish = nil
		end(a.outcome(lease, err))
	}
	if err != nil {
		return nil, err
	}
	a.engine.examine.Do(func() { calls.Ask(&a.engine.calls, a.engine.warn) })
	return lease, nil
}

func (a *acquisition) run() (lease *Lease, err error) {
	a.ticket = &a.own
	if err := a.caller.Err(); err != nil {
		return nil, a.fail(err, 0)
	}
	if a.engine.isClosing() {
		return nil, a.fail(ErrClosed, 0)
	}
	within, err := a.nested()
	if err != nil {
		return nil, err
	}
	if within != nil && a.rule.hasItsOwn() {
		a.inside, a.rule.Wait = true, NoWait
	}
	if a.rule.Wait > 0 {
		timer := a.engine.timers.Start(a.rule.Wait)
		defer a.engine.timers.Stop(timer)
		a.expiry = timer.C
	}
	a.describe()
	defer func() { a.close(lease, err) }() // also when an Observer or a Backoff panics
	if within != nil && !a.inside {
		if l := a.readAlong(within); l != nil {
			return l, nil
		} // it was lost in between
	}
	t, ok := a.engine.cohorts.share(a.rule, a.adaptive)
	switch {
	case ok:
		return a.among(t)
	case a.rule.Mode == Shared:
		a.cohort = &cohort{terms: t} // its own
	}
	return a.start()
}

// start asks for the first time.
func (a *acquisition) start() (*Lease, error) {
	if a.rule.Mode == Shared {
		if err := a.subscribeFirst(); err != nil {
			return nil, err
		}
	}
	a.prepare()
	return a.lead(nil)
}

// describe finds out the metadata of the lease, once.
func (a *acquisition) describe() {
	if a.meta != "" {
		return
	}
	if a.meta = a.rule.Metadata; a.meta == "" && a.engine.cfg.metadata != nil {
		a.meta = a.engine.cfg.metadata(a.ctx)
	}
	a.meta = shorten(a.meta, maxMetadataBytes)
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
	return text[:n] // it is no text
}

// close ends what the wait has set up.
func (a *acquisition) close(lease *Lease, err error) {
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

// admit counts the caller as a waiter, unless too many wait already.
func (a *acquisition) admit() bool {
	a.admitted = a.admitted || a.engine.waiters.enter(a.key(), a.engine.cfg.maxWaiters)
	return a.admitted
}

func (a *acquisition) key() string { return a.engine.cfg.prefix + a.rule.Key }
