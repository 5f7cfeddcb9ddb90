package locker

import (
	"context"
	"fmt"
	"time"
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
	pass     *Pass         // of who joins a lease

	*ticket        // the token that is asked with
	own     ticket // mostly it is this one

	cohort *cohort   // nil: shares nothing
	turn   chan turn // ends the wait in the cohort; made when it begins
	leads  bool      // the cohort waits for this one to get a hold, or to abdicate

	calls     int
	rounds    int           // round trips that a quorum needed
	busySince time.Time     // zero: no holder was seen
	expects   time.Duration // how long the wait should take
	failure   error         // of the last call that gave no answer
	admitted  bool          // counted as a waiter
	polled    bool          // the last question followed a pause of the Backoff
	pauses    func() (time.Duration, bool)
	stop      func() // ends pauses
}

// question is an acquire that is under way.
type question interface {
	heard() <-chan struct{} // signalled when the answer is there
	answer() (Grant, error) // after that, once
	abandon()               // instead of answer: nobody waits for it any more
}

// observe tells the Observer that it begins.
func (a *acquisition) observe() {
	a.ctx, a.finish = a.engine.cfg.begin(a.ctx, OpAcquire, a.rule)
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
	a.engine.examine.Do(func() { ask(&a.engine.calls, a.engine.warn) })
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
	if a.rule.Wait > 0 {
		timer := a.engine.timers.start(a.rule.Wait)
		defer a.engine.timers.stop(timer)
		a.expiry = timer.C
	}
	a.describe()
	defer func() { a.close(lease, err) }() // also when an Observer or a Backoff panics
	t, ok := a.engine.cohorts.share(a.rule, a.adaptive)
	switch {
	case ok && within != nil:
		if l := a.readAlong(within); l != nil {
			return l, nil
		}
		fallthrough // it was lost in between
	case ok:
		return a.among(t)
	case a.rule.Mode == Shared:
		a.cohort = &cohort{terms: t} // its own
	}
	return a.begin()
}

// begin asks for the first time.
func (a *acquisition) begin() (*Lease, error) {
	if a.rule.Mode == Shared {
		if err := a.hear(); err != nil {
			return nil, err
		}
	}
	a.prepare()
	return a.lead(nil)
}

// describe asks for the metadata, once.
func (a *acquisition) describe() {
	if f := a.engine.cfg.metadata; f != nil && a.meta == "" {
		a.meta = f(a.ctx)
		a.meta = a.meta[:min(len(a.meta), maxMetadataBytes)]
	}
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

// among waits with the callers of this process that want the key on the same terms.
func (a *acquisition) among(t terms) (*Lease, error) {
	for inFront := false; ; inFront = true {
		if t.mode == Shared {
			if l := a.read(t); l != nil {
				return l, nil
			}
		}
		if !a.engine.cohorts.join(a, t, inFront) {
			return nil, a.fail(ErrTooManyWaiters, a.retryAfter())
		}
		if a.leads || a.rule.Wait == NoWait {
			return a.begin()
		}
		if a.engine.cfg.queue {
			a.engine.post.warm(a.key())
		}
		turn, err := a.turnComes()
		switch {
		case err != nil:
			return nil, err
		case turn.err != nil:
			return nil, turn.err
		case turn.hold == nil:
			return a.succeed(turn)
		}
		a.busySince = a.began
		if l := a.takeOver(turn); l != nil {
			return l, nil
		}
		if a.engine.isClosing() {
			return nil, a.fail(ErrClosed, 0)
		}
		// The hold was lost on the way here: the next round.
	}
}

// turnComes waits in the cohort.
func (a *acquisition) turnComes() (turn, error) {
	var reason error
	select {
	case t := <-a.turn:
		return t, nil
	case <-a.caller.Done():
		reason = a.caller.Err()
	case <-a.expiry:
		reason = errWaitOver
	case <-a.engine.closing:
		reason = ErrClosed
	}
	if !a.engine.cohorts.leave(a) {
		a.passUp(<-a.turn)
	}
	return turn{}, a.giveUp(reason)
}

// takeOver makes a Lease of a hold that another caller gave up, or shares. It is nil when the hold was lost in between, or the Engine
// is closing.
func (a *acquisition) takeOver(t turn) *Lease {
	taken := false
	defer func() {
		if !taken { // or an Observer has panicked
			a.passUp(t)
		}
	}()
	l := new(Lease)
	l.init(a, t.hold, t.fence)
	if taken = a.engine.keeper.attach(t.hold, l); taken {
		return l
	}
	if a.engine.isClosing() {
		l.tell(ErrClosed)
	} else {
		l.tell(ErrLost)
	}
	return nil
}

// succeed leads the cohort, after the leader before.
func (a *acquisition) succeed(t turn) (*Lease, error) {
	a.leads = true
	if t.seen && a.busySince.IsZero() {
		a.busySince = a.began
	}
	switch {
	case t.ticket != nil: // its ticket waits in the queue
		a.ticket = t.ticket
		return a.goOn(nil, nil)
	case t.follow != nil: // its release has asked for us
		return a.lead(t.follow)
	}
	return a.begin()
}

// passUp does with a turn what must be done when nobody is there to take it.
func (a *acquisition) passUp(t turn) {
	a.busySince = a.began
	switch {
	case t.err != nil:
	case t.hold != nil:
		passed, next := a.engine.cohorts.release(t.hold)
		if !passed {
			t.hold.drop()
		}
		if next != nil {
			next.turn <- turn{seen: true}
		}
	default:
		a.leads = true
		if t.ticket != nil {
			a.ticket = t.ticket
		}
		if t.follow != nil {
			a.unclear = true
		}
	}
}

// lead asks the Store until it has a lease or a reason to stop; q is a question that is under way already.
func (a *acquisition) lead(q question) (*Lease, error) {
	if q != nil {
		return a.goOn(a.await(q))
	}
	return a.goOn(a.ask())
}

func (a *acquisition) goOn(lease *Lease, err error) (*Lease, error) {
	for lease == nil && err == nil {
		lease, err = a.wait()
	}
	return lease, err
}

// ask asks the Store once. Neither a lease nor an error means: again.
func (a *acquisition) ask() (*Lease, error) {
	a.calls++
	a.sent = a.began
	if a.calls > 1 || a.turn != nil || a.rule.Mode == Shared { // it has waited, or may have subscribed
		a.sent = time.Now()
	}
	if !a.known {
		a.known, a.first = true, a.sent
	}
	return a.await(a.engine.calls.begin(a.ctx, Store.Acquire, a.claim))
}

func (a *acquisition) await(q question) (*Lease, error) {
	wasCurrent := a.current
	a.current = false
	var reason error
	bell, late := a.box.bell, (<-chan time.Time)(nil)
	for reason == nil {
		select {
		case <-q.heard():
			g, err := q.answer()
			if err == errNotQueued {
				return a.ask()
			}
			if err != nil {
				return nil, a.failed(err)
			}
			return a.answered(g)
		case <-bell: // a grant, before the answer: that is mostly on its way, and costs less than an unanswered call
			if _, granted := a.engine.post.granted(&a.box); granted {
				timer := a.engine.timers.start(freshGrant / 2)
				defer a.engine.timers.stop(timer)
				late = timer.C
			}
			bell = nil
		case <-late:
			if e, granted := a.engine.post.granted(&a.box); granted && a.certain(e) {
				q.abandon()
				a.unclear = true
				return a.handed(e)
			}
		case <-a.caller.Done():
			reason = a.caller.Err()
		case <-a.expiry:
			reason = errWaitOver
		case <-a.engine.closing:
			reason = ErrClosed
		}
	}
	q.abandon()
	a.unclear = true
	if time.Since(a.sent) > freshGrant {
		a.failure = errNoAnswer
	} else {
		a.current = wasCurrent // what was answered last is still worth telling
	}
	return nil, a.giveUp(reason)
}

func (a *acquisition) answered(g Grant) (*Lease, error) {
	a.rounds += g.Rounds
	if a.polled {
		a.polled = false
		a.engine.times.polled(a.rule.Name, g.State == Granted)
	}
	if g.State != Granted {
		a.known = a.unclear || g.State == Busy && (a.claim.Queue || g.Unsettled)
	}
	switch g.State {
	case Granted:
		return a.take(g, a.sent, 0)
	case Busy:
		a.busy(g)
		if a.rule.Wait == NoWait {
			return nil, a.giveUp(errWaitOver)
		}
		return nil, nil
	case Done:
		return nil, a.fail(ErrDone, 0)
	case Revoked: // between a grant whose answer was lost and this repetition
		return nil, a.fail(revokedBecause(g.Reason), 0)
	default: // Undone is only answered to tokens that were given up
		return nil, a.fail(fmt.Errorf("%w: unexpected answer %q to an acquire", ErrUnavailable, g.State), 0)
	}
}

// busy remembers what the answer says of the holder and of the queue.
func (a *acquisition) busy(g Grant) {
	a.holder, a.place, a.deaf, a.current = g.Holder, g.Place, g.Deaf, true
	a.clock = anchor{local: a.sent, server: g.At}
	if a.busySince.IsZero() {
		a.busySince = a.sent
		if d, ok := a.engine.times.expect(a.rule.Name); ok {
			a.expects = d * time.Duration(max(a.place, 1))
		}
	}
	if a.cohort != nil {
		a.engine.cohorts.busy(a)
	}
	if a.deaf {
		a.engine.post.deaf(a.claim.Inbox)
	}
}

// take makes the lease, counting its deadline from since: no later than the grant. handed is how long the server keeps it
// when the grant was told by message, 0 when it was the answer. Grant and the end of the caller may come together: then
// the lock is given back.
func (a *acquisition) take(g Grant, since time.Time, handed time.Duration) (*Lease, error) {
	e := a.engine
	ttl := a.rule.lease()
	life := ttl
	if handed > 0 {
		life = handed
	}
	each := ttl
	if g.Left > 0 {
		life = min(life, g.Left)
		each = life
	}
	deadline := since.Add(life - e.cfg.drift(life))
	if gone := a.caller.Err(); gone != nil {
		return nil, a.fail(gone, 0)
	}
	now := time.Now()
	if !now.Before(deadline) {
		a.renewTicket()
		return nil, a.unanswered(fmt.Errorf("the answer took longer than the lease of %v lives; raise the TTL", ttl))
	}
	f := new(first)
	f.hold = hold{
		engine: e, claim: a.claim, fence: g.Fence, block: int32(g.Block), ttl: ttl, since: since, //nolint:gosec // at most WithHandoffs

		unclear: a.unclear, posted: a.expected, cohort: a.cohort,
		renewal: renewal{each: each, longest: ttl, deadline: deadline, handed: handed, adaptive: a.adaptive},
	}
	if a.rule.AtMost != 0 {
		f.hold.until = since.Add(a.rule.AtMost)
	}
	if a.rule.AtLeast != 0 {
		f.hold.keep = now.Add(a.rule.AtLeast)
	}
	if a.rule.Mode == Shared {
		f.hold.claim.Fence = g.Fence
	}
	f.lease.init(a, &f.hold, g.Fence)
	if a.cohort != nil {
		e.cohorts.granted(&f.hold) // before the keeper can find it lost, and tell the cohort so
	}
	writer := g.Writer
	if a.expected {
		writer = e.post.ignore(a.claim.Owner) || writer
	}
	if !e.keeper.add(&f.hold, &f.lease) {
		f.lease.tell(ErrClosed)
		return nil, a.fail(ErrClosed, 0)
	}
	if a.rule.Mode == Shared {
		e.cohorts.admit(&f.hold, writer)
	}
	return &f.lease, nil
}

// sees remembers who holds the key for which the caller waits in this process.
func (a *acquisition) sees(h Holder) {
	a.busySince, a.holder, a.current = a.began, h, true
}

// admit counts the caller as a waiter, unless too many wait already.
func (a *acquisition) admit() bool {
	a.admitted = a.admitted || a.engine.waiters.admit(a.key(), a.engine.cfg.maxWaiters)
	return a.admitted
}

func (a *acquisition) key() string { return a.engine.cfg.prefix + a.rule.Key }
