package locker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// mostDepartures is the largest number of background releases without an answer. Without this
// limit, unanswered releases would pile up when a server stalls.
const mostDepartures = 1024

// departures are the background releases of an Engine: see WithBackgroundRelease.
type departures struct {
	steps calls.Releases // nil: all releases are awaited
	open  atomic.Int32
	tasks calls.Tasks // Close waits for them
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
	next   *follow // the acquire that goes out with the release
	rest   *cohort // the cohort whose next leader asks when the release is answered
	report func(error, int)

	recall func() bool   // takes back a release that was not sent yet; nil: it was sent at once
	over   chan struct{} // closed when no caller needs to wait for the release

	done bool // guarded by the cohorts' mutex
}

// AwaitRelease makes [Run] and [RunAll] wait for the server's answer to the release of this lease,
// also with [WithBackgroundRelease]. Call AwaitRelease when the result of the function is valid
// only if the lock was held to the end, for example when a response is sent after Run has returned.
func (l *Lease) AwaitRelease() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaits = true
}

// mayLeave reports whether Run may return before the answer to the release.
func (l *Lease) mayLeave() bool {
	e := l.engine
	if e.departures.steps == nil || l.part != nil || l.rule.Once != 0 || l.rule.AtLeast != 0 || e.isClosing() {
		return false
	}
	l.mu.Lock()
	awaits := l.awaits
	l.mu.Unlock()
	return !awaits && e.keeper.isHeld(l.hold) && e.departures.steps.Prompt(l.hold.claim.Key)
}

// leave gives up the hold without waiting for the server. If the answer must be awaited, leave does
// nothing and returns false. The function end notifies the Observer that the release has ended.
func (l *Lease) leave(ctx context.Context, end func(Outcome)) bool {
	e, h := l.engine, l.hold
	ds := &e.departures
	if !l.mayLeave() {
		return false
	}
	if ds.open.Add(1) > mostDepartures {
		ds.open.Add(-1)
		return false
	}
	if !l.end(ErrReleased) { // l was lost just now
		ds.open.Add(-1)
		return false
	}
	// Enter cannot fail here, because Close closes tasks only when this Run has returned.
	ds.tasks.Enter()
	now := time.Now()
	e.times.held(l.rule.Name, now.Sub(l.began))
	l.notifyObserver(nil)
	d := l.departure(ctx, end)
	passed, rest := e.cohorts.release(h)
	if passed {
		e.keeper.leave(h, l)
		d.end(nil, 0)
		return true
	}
	longest, cared := e.keeper.retire(h)
	if !cared { // the hold was lost just now, so no caller may take it over
		d.terms = terms{}
	}
	d.chore = h.chore(longest)
	claim := d.chore.At(now)
	when := calls.WithOthers
	if h.contended {
		when = calls.Soon // other callers probably wait
	}
	if rest != nil {
		when = calls.Soon
		if !e.asksWithRelease(h.claim.Key) {
			d.rest = rest
		} else if next := e.cohorts.lead(rest); next != nil {
			if d.next = newFollow(next, now); d.next != nil {
				claim.Next = &d.next.claim
			}
		}
	}
	recall := ds.steps.ReleaseBeside(ctx, claim, when, d.answered)
	if when == calls.WithOthers {
		d.recall = recall
	}
	e.cohorts.depart(d)
	return true
}

// departure returns the departure of l's hold, before the release is sent. If end is not nil, it is
// called with the outcome of the release.
func (l *Lease) departure(ctx context.Context, end func(Outcome)) *departure {
	d := &departure{engine: l.engine, ctx: ctx, hold: l.hold, over: make(chan struct{})}
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
	if c := l.hold.cohort; c != nil && c.terms.mode == Exclusive && !c.isPermits() {
		// d.terms is a copy, because the cohort object may soon be reused with other terms.
		d.terms = c.terms
	}
	return d
}

// answered acts on the answer to the release. It must not block.
func (d *departure) answered(g store.Grant, err error) {
	if d.next != nil {
		d.next.receive(g, err)
	}
	switch {
	case err != nil:
		d.engine.steps.Undo(d.chore)
		err = unavailable(err)
	case g.State == store.Revoked:
		err = revokedBecause(g.Reason)
	case g.State != store.Released:
		err = errTaken
	}
	d.engine.post.forget(d.hold)
	d.engine.cohorts.departed(d)
	if d.rest != nil {
		d.engine.cohorts.released(d.rest)
	}
	d.end(err, 1)
}

// end ends a departure. The Observer is called on a goroutine of its own, because the goroutine
// that calls end may also deliver the answers to other calls.
func (d *departure) end(err error, asked int) {
	e := d.engine
	if d.report != nil {
		e.calls.Do(func() { d.report(err, asked) })
	}
	e.departures.open.Add(-1)
	e.departures.tasks.Leave()
}

// hurry sends the release at once if it was not sent.
func (d *departure) hurry() {
	if d.recall != nil && d.recall() {
		d.engine.departures.steps.ReleaseBeside(d.ctx, d.chore.At(time.Now()), calls.AtOnce, d.answered)
	}
}

// depart registers a background release, so that callers of this process that want the key find it.
// If the release is over already, depart does nothing. It replaces the entry of an earlier release
// of the same key, which was sent before this hold was granted.
func (cs *cohorts) depart(d *departure) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if d.done {
		return
	}
	if cs.leaving == nil {
		cs.leaving = make(map[string]*departure)
	}
	cs.leaving[d.hold.claim.Key] = d
}

// departed is called when no caller needs to wait for a release any more.
func (cs *cohorts) departed(d *departure) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.forget(d)
}

// forget does the work of departed, for callers that hold cs.mu.
func (cs *cohorts) forget(d *departure) {
	if key := d.hold.claim.Key; cs.leaving[key] == d {
		delete(cs.leaving, key)
	}
	d.done = true
	close(d.over)
}

// departing returns the background release of key that is under way in this process, or nil.
func (cs *cohorts) departing(key string) *departure {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.leaving[key]
}

// If a background release of a hold with the same terms was not sent yet, and the streak may
// continue, takeBack gives this hold to the acquisition. The acquisition is the first caller of the
// cohort c. cs.mu is held.
func (cs *cohorts) takeBack(a *acquisition, c *cohort) bool {
	d := cs.leaving[c.terms.key]
	if d == nil || d.terms != c.terms || d.recall == nil || cs.engine.isClosing() {
		return false
	}
	h := d.hold
	if h.used >= h.block || instantOf(time.Now()).until(h.taken) >= streakWithin || !cs.engine.keeper.isWorthKeeping(h) || !d.recall() {
		return false
	}
	cs.forget(d)
	cs.engine.keeper.resume(h)
	h.over, h.cohort, c.hold = false, c, h
	a.cohort, a.recalled = c, d
	a.expectTurn()
	a.takes(h)
	return true
}

// afterRelease waits for this process's background release of the key, so that the acquisition's
// question does not overtake the release.
func (a *acquisition) afterRelease() error {
	if a.engine.departures.steps == nil {
		return nil
	}
	d := a.engine.cohorts.departing(a.key())
	if d == nil {
		return nil
	}
	d.hurry()
	select {
	case <-d.over: // the release was answered, has failed, or was taken back
		return nil
	case <-a.caller.Done():
		return a.giveUp(a.caller.Err())
	case <-a.expiry:
		return a.giveUp(errWaitOver)
	case <-a.engine.closing:
		return a.giveUp(ErrClosed)
	}
}

// isHeld reports whether a hold has time left.
func (k *keeper) isHeld(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.index > 0 && instantOf(time.Now()) < h.deadline
}

// retire removes h from the schedule. cared is true if h was in the schedule.
func (k *keeper) retire(h *hold) (longest time.Duration, cared bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cared = h.index > 0; cared {
		k.due.remove(h)
	}
	return h.longest, cared
}

// isWorthKeeping reports whether a hold that was removed from the schedule is good enough to return
// to it and to serve another Lease.
func (k *keeper) isWorthKeeping(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.isPassable() && h.lasts()
}

// resume puts a hold whose release was recalled back into the schedule.
func (k *keeper) resume(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.freeForNext()
	k.due.add(h)
	k.rouse()
}
