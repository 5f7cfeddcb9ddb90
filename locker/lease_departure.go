package locker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// mostDepartures is the largest number of background releases without an answer. Without this
// limit, unanswered releases would pile up when a server stalls.
const mostDepartures = 1024

// departures are the background releases of an Engine: see WithBackgroundRelease.
type departures struct {
	open  atomic.Int32
	tasks calls.Tasks // the background releases, for which Close waits
}

// departure is one background release. The answers mean:
//
//	released                       the key is free
//	revoked, or not ours           only the Observer learns of it
//	no answer, or a refusal        an undo repeats the release, and Close waits for it
//
// When a caller of the same process wants the key before the answer, there are two cases:
//
//	the release was not sent       the caller takes the hold over, if a streak may go on; otherwise the
//	                               release is sent at once, and the caller asks after its answer
//	the release was sent           the caller asks after its answer
type departure struct {
	engine *Engine
	ctx    context.Context // the release call gets the values of ctx
	hold   *hold
	chore  calls.Chore
	terms  terms   // callers of this process with these terms may take the hold over; zero: none may
	rest   *cohort // the cohort whose next leader asks when the release is answered
	report func(error, int)

	delayed  *calls.Future // the release, if it may still be taken back; nil: it was sent at once
	finished chan struct{} // closed when no caller needs to wait for the release
	since    time.Time     // a suspension of the machine after this time concerns the hold

	unregistered bool // the release is over for other callers; guarded by the cohorts' mutex
}

// AwaitRelease makes [Run] and [RunAll] wait for the server's answer to the release of this lease,
// also with [WithBackgroundRelease]. Call AwaitRelease when the result of the function is valid
// only if the lock was held to the end, for example when a response is sent after Run has returned.
func (l *Lease) AwaitRelease() {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.awaits = true
}

// mayLeave reports whether Run may return before the answer to the release.
func (l *Lease) mayLeave() bool {
	e := l.engine
	if !e.cfg.background || l.part != nil || l.rule.OnceFor != 0 || l.rule.KeepFor != 0 || e.isClosing() {
		return false
	}
	l.state.mu.Lock()
	awaits := l.state.awaits
	l.state.mu.Unlock()
	return !awaits && e.keeper.isHeld(l.hold) && e.steps.Prompt(l.hold.claim.Key)
}

// releaseInBackground gives up the hold without waiting for the server. If the answer must be
// awaited, it does nothing and returns false. The function end notifies the Observer that the
// release has ended.
func (l *Lease) releaseInBackground(ctx context.Context, end func(Outcome)) bool {
	e, h := l.engine, l.hold
	ds := &e.departures
	if !l.mayLeave() {
		return false
	}
	if ds.open.Add(1) > mostDepartures {
		ds.open.Add(-1)
		return false
	}
	if !l.state.end(ErrReleased) { // l was lost just now
		ds.open.Add(-1)
		return false
	}
	// Enter cannot fail here, because Close closes tasks only when this Run has returned.
	ds.tasks.Enter()
	now := time.Now()
	e.times.recordHold(l.rule.Name, now.Sub(l.state.began))
	l.notifyObserver(nil)
	d := l.departure(ctx, end)
	d.since = now
	passed, rest := e.cohorts.release(h)
	if passed {
		e.keeper.removeUser(h, l)
		d.end(nil, 0)
		return true
	}
	var scheduled bool
	if d.chore, _, scheduled = e.keeper.retire(h); !scheduled { // the hold was lost just now, so no caller may take it over
		d.terms = terms{}
	}
	step := calls.ReleaseLater
	if h.contended {
		step = calls.ReleaseSoon // other callers probably wait
	}
	if rest != nil {
		step, d.rest = calls.ReleaseSoon, rest
	}
	if release := e.steps.Begin(ctx, step, d.chore.At(now), d.handleAnswer); step == calls.ReleaseLater {
		d.delayed = release
	}
	e.cohorts.registerDeparture(d)
	return true
}

// departure returns the departure of l's hold, before the release is sent. If end is not nil, it is
// called with the outcome of the release.
func (l *Lease) departure(ctx context.Context, end func(Outcome)) *departure {
	d := &departure{engine: l.engine, ctx: ctx, hold: l.hold, finished: make(chan struct{})}
	if end != nil {
		d.report = func(err error, calls int) {
			if err != nil {
				err = l.wrap(OpRelease, err)
			}
			o := l.outcome(OpRelease, err)
			o.Calls = calls
			finish(end, o)
		}
	}
	d.terms = l.engine.cohorts.termsAfter(l.hold)
	return d
}

// termsAfter returns the terms of the callers that may take h over from its background release, or
// zero terms if none may. The result is a copy, because the cohort object may soon be reused with
// other terms.
func (cs *cohorts) termsAfter(h *hold) terms {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := h.cohort; c != nil && c.terms.mode == Exclusive && !c.isPermits() {
		return c.terms
	}
	return terms{}
}

// handleAnswer acts on (g, err), the answer to the release. handleAnswer must not block.
func (d *departure) handleAnswer(g store.Grant, err error) {
	switch {
	case err != nil:
		d.engine.undo(d.chore)
		err = asUnavailable(err)
	case g.State == store.Revoked:
		err = revokedBecause(g.Reason)
	case g.State != store.Released:
		err = errTaken
	}
	d.engine.post.forget(d.hold)
	d.engine.cohorts.unregisterDeparture(d)
	d.engine.cohorts.leadAfterRelease(d.rest)
	d.end(err, 1)
}

// end ends a departure, which is a background release. The error err is nil if the release is
// confirmed, and asked is the number of calls.
func (d *departure) end(err error, asked int) {
	e := d.engine
	if d.report != nil {
		e.notifyApart(func() { d.report(err, asked) })
	}
	e.departures.open.Add(-1)
	e.departures.tasks.Leave()
}

// sendNow sends the release at once if it was not sent before.
func (d *departure) sendNow() {
	if d.delayed != nil && d.delayed.Recall() {
		d.engine.steps.Begin(d.ctx, calls.Release, d.chore.At(time.Now()), d.handleAnswer)
	}
}

// registerDeparture registers the background release d, so that callers of this process that want
// the key find it. If the release is over already, registerDeparture does nothing. The entry of
// d replaces the entry of an earlier release of the same key, which was sent before the hold of
// d was granted.
func (cs *cohorts) registerDeparture(d *departure) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if d.unregistered {
		return
	}
	if cs.leaving == nil {
		cs.leaving = make(map[string]*departure)
	}
	cs.leaving[d.hold.claim.Key] = d
}

// unregisterDeparture is called when no caller needs to wait for the release d any more.
func (cs *cohorts) unregisterDeparture(d *departure) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.unregisterLocked(d)
}

// unregisterLocked does the work of unregisterDeparture, for callers that hold cs.mu.
func (cs *cohorts) unregisterLocked(d *departure) {
	if key := d.hold.claim.Key; cs.leaving[key] == d {
		delete(cs.leaving, key)
	}
	d.unregistered = true
	close(d.finished)
}

// departureOf returns the background release of key that is under way in this process, or nil.
func (cs *cohorts) departureOf(key string) *departure {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.leaving[key]
}

// takeBack gives a hold with the same terms to the acquisition a, if the background release of this
// hold was not sent yet and the streak may continue. The acquisition is the first caller of the
// cohort c. takeBack returns false if there is no such hold. The caller holds cs.mu.
func (cs *cohorts) takeBack(a *acquisition, c *cohort) bool {
	d := cs.leaving[c.terms.key]
	if d == nil || d.terms != c.terms || d.delayed == nil {
		return false
	}
	h := d.hold
	if !cs.mayContinue(h) || !cs.engine.keeper.isWorthKeeping(h, d.since) || !d.delayed.Recall() {
		return false
	}
	cs.unregisterLocked(d)
	cs.engine.keeper.resume(h)
	h.ended, h.cohort, c.hold = false, c, h
	a.cohort, a.recalled = c, d
	a.expectTurn()
	successor{a}.useHold(h)
	return true
}

// awaitDeparture waits for this process's background release of the key, so that the acquisition's
// question does not overtake the release.
func (a *acquisition) awaitDeparture() error {
	if !a.caller.engine.cfg.background {
		return nil
	}
	d := a.caller.engine.cohorts.departureOf(a.caller.key())
	if d == nil {
		return nil
	}
	d.sendNow()
	// The release was answered, has failed, or was taken back.
	if e, over := a.caller.await(&awaited{answer: d.finished}); e == waitOver {
		return a.giveUp(over)
	}
	return nil
}

// isHeld reports whether h has time left.
func (k *keeper) isHeld(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.renewal.index > 0 && instantOf(time.Now()) < h.renewal.deadline.load()
}

// isWorthKeeping reports whether h, which was removed from the schedule at the time since, is good
// enough to return to it and to serve another Lease. Nobody has looked for a suspension on behalf
// of h since then.
func (k *keeper) isWorthKeeping(h *hold, since time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.isPassable() && h.isFresh() && k.clocks.gained(since, time.Now()) == 0
}

// resume puts h, whose release was recalled, back into the schedule.
func (k *keeper) resume(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.freeForNext()
	k.due.add(h)
	k.wakeRun()
}
