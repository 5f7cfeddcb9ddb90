package locker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// family is a lease of the Locker inside a reentrant Locker, the root, and the Leases that are its
// parts. Callers never see the root. A part can have all states that a Lease can have. The
// table shows the events, and their effect on the other parts:
//
//	a part is released      nothing, unless the part is the last one: then the root is released, or
//	                        completed if all parts with OnceFor were completed
//	a part's EndAfter is over the same, and its contexts end with ErrExpired
//	the root is lost        all parts are lost
//	the Engine is closing   all contexts end with ErrClosed; the parts are released as before
type family struct {
	locker *partLocker // see partLocker.families
	lock   string      // the key for which the Locker inside was asked
	root   *Lease

	mu        sync.Mutex
	parts     map[*Lease]struct{} // the parts that are not released
	left      bool                // a part was released
	ended     bool                // the last part was released
	completed bool                // a part with OnceFor was completed
	failed    bool                // a part with OnceFor was released without being completed
}

// part links a Lease to its family.
type part struct {
	family    *family
	atMostEnd time.Time   // when the part's own EndAfter is over; zero: it has no EndAfter
	expiry    *time.Timer // fires when EndAfter is over; nil: the part has no EndAfter
}

// add makes a nested part for rule, and returns it.
func (f *family) add(ctx context.Context, rule Rule) (*Lease, error) {
	root := f.root
	p := &part{family: f}
	l := &Lease{
		engine: root.engine, hold: root.hold, rule: rule, fence: root.fence, part: p,
		state: leaseState{began: time.Now()},
	}
	if rule.EndAfter != 0 {
		p.atMostEnd = l.state.began.Add(rule.EndAfter)
	}
	l.base, l.endHold = root.engine.cfg.observe(ctx, OpHold, rule)
	if err := f.enter(l); err != nil {
		finish(l.endHold, l.outcome(OpHold, err))
		return nil, err
	}
	if rule.EndAfter != 0 {
		p.expiry = time.AfterFunc(rule.EndAfter, func() { p.expire(l) })
	}
	return l, nil
}

// enter adds l to the parts. From then on, l ends when the root ends.
func (f *family) enter(l *Lease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return errNotHeld
	}
	if cause := f.root.state.contextCause(); cause != nil {
		return cause
	}
	f.parts[l] = struct{}{}
	return nil
}

// remove removes the part l, and reports whether l was the last part. The parameter complete
// reports whether the caller has completed the work.
func (f *family) remove(l *Lease, complete bool) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.rule.OnceFor > 0 {
		f.completed, f.failed = f.completed || complete, f.failed || !complete
	}
	delete(f.parts, l)
	f.left = true
	last = len(f.parts) == 0 && !f.ended
	f.ended = f.ended || last
	return last
}

// isComplete reports whether the work counts as done: a part with OnceFor was completed, and no
// such part failed.
func (f *family) isComplete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.completed && !f.failed
}

// end is called when the root's contexts have ended, with the given cause.
func (f *family) end(cause error) {
	f.mu.Lock()
	parts := slices.Collect(maps.Keys(f.parts))
	f.mu.Unlock()
	lost := f.root.state.endError()
	for _, l := range parts {
		if endedEarly(lost) {
			l.lose(lost)
		} else {
			l.state.cancel(cause)
		}
	}
}

// isOverdue reports whether the part's own EndAfter is over.
func (p *part) isOverdue(now instant) bool {
	return !p.atMostEnd.IsZero() && now >= instantOf(p.atMostEnd)
}

// expire ends the part l, whose EndAfter is over.
func (p *part) expire(l *Lease) {
	if l.lose(ErrExpired) {
		p.leave(l)
	}
}

// leave takes the part l, which has expired, out of its family.
func (p *part) leave(l *Lease) {
	if f := p.family; f.remove(l, false) {
		_ = f.root.giveUp(context.Background(), f.isComplete(), new(int))
	}
}

// giveUpPart ends the part l by a release, as Lease.giveUp ends a Lease.
func (p *part) giveUpPart(ctx context.Context, l *Lease, complete bool, calls *int) error {
	if p.expiry != nil {
		p.expiry.Stop()
	}
	f := p.family
	if lost := f.root.state.endError(); endedEarly(lost) { // in Close, the part may not have noticed the loss yet
		l.lose(lost)
	}
	switch {
	case !l.state.end(ErrReleased):
		return l.state.endError()
	case f.remove(l, complete):
		return f.root.giveUp(ctx, f.isComplete(), calls)
	}
	return nil
}

// isFirst reports whether only one part has ever used the lease.
func (f *family) isFirst() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.parts) == 1 && !f.left
}

// root returns the Lease that the Engine knows, which is l itself unless l is a part.
func (l *Lease) root() *Lease {
	for l.part != nil {
		l = l.part.family.root
	}
	return l
}
