package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// NewReentrant returns a Locker over l that grants a lock again to its holder. The context alone
// identifies the holder: the context of [Run]'s function, [Lease.Context], or one derived from
// them. An Acquire with such a context gets a Lease with the holder's fence at once, without a call
// to the server. All other callers wait. Goroutines with the context of one holder are one holder,
// and the lock does not exclude them from each other.
//
// Each hold is a Lease with a Release of its own, in any order. The lock is released with the last
// hold. When the lease is lost, all holds end, and from then on an Acquire with one of their
// contexts is refused with the error of the loss: it never takes a new lease silently. With a
// context of a released hold that has lost its cancellation (context.WithoutCancel), Acquire gets a
// part of an outer hold that is still held, or otherwise waits like any other caller.
//
// An acquire with Shared inside an Exclusive hold gets a nested hold, and the lease stays
// Exclusive. An acquire with Exclusive inside a Shared hold is refused at once with ErrUnsupported,
// because two such callers would wait for each other. The list says what each field of a nested
// Rule means:
//
//	TTL, Wait  are ignored: the lease is renewed as before. Extend lengthens it for all holds
//	EndAfter   is ignored: that of the first hold ends all holds
//	KeepFor    must end no later than KeepFor of the first hold. Otherwise ErrUnsupported
//	OnceFor    must be no longer than OnceFor of the first hold, which has asked whether the work is
//	           done. Otherwise ErrUnsupported. The work counts as done if all holds with OnceFor were
//	           completed
//
// l may be a Locker of [NewStriped]: then a nested Acquire gets a hold of its stripe, whichever key
// it names. The Observer of l sees a nested acquire with [ResultNested], and the operations of
// nested holds. When the Locker is not used any more, close the Engine inside.
func NewReentrant(l Locker) (Locker, error) {
	if isNil(l) {
		return nil, errors.New("latchkit: NewReentrant: the Locker is nil; make one with New, and check its error")
	}
	p := &partLocker{inner: l, reentrant: true}
	if striped, ok := l.(*partLocker); ok && !striped.reentrant {
		// In two layers, the outer one would know its own keys only, and a caller would wait for
		// its own stripe.
		p.inner, p.stripes, p.families = striped.inner, striped.stripes, striped.families
		return p, nil
	}
	p.families = p
	return p, nil
}

// partLocker is a Locker over another Locker. Each Lease that it grants is a part of a lease of
// that Locker: see family. It is a Locker of [NewReentrant] or of [NewStriped].
type partLocker struct {
	inner   Locker
	stripes uint64 // the number of stripes; 0: each key has a lock of its own

	reentrant bool        // a caller may take a key again that it holds
	families  *partLocker // the Locker whose leases callers hold: p, or the striped Locker that NewReentrant was given
}

func (p *partLocker) Acquire(ctx context.Context, rule Rule) (*Lease, error) {
	lock, err := p.lockOf(rule)
	if err != nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
	}
	if part, err := p.enter(ctx, rule, lock.Key); part != nil || err != nil {
		return part, err
	}
	root, err := p.inner.Acquire(ctx, lock)
	if err != nil {
		return nil, p.withCallerKey(err, rule.Key)
	}
	return p.newFamily(root, lock.Key, rule.Key), nil
}

// acquireAll makes a nested Lease, which is a part of the outer lease, for each key whose lock is
// held in ctx. For the other keys it takes each lock once, through the Locker inside.
func (p *partLocker) acquireAll(ctx context.Context, rules []Rule) ([]*Lease, error) {
	locks := make([]Rule, len(rules))
	for i, rule := range rules {
		var err error
		if locks[i], err = p.lockOf(rule); err != nil {
			return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
		}
	}
	return takeSet(ctx, func(s *lockSet) error {
		leases := make([]*Lease, len(rules))
		var others []int // the indexes in rules of the keys whose locks are not in ctx
		for i, rule := range rules {
			part, err := p.enter(ctx, rule, locks[i].Key)
			switch {
			case err != nil:
				return err
			case part == nil:
				others = append(others, i)
			default:
				leases[i] = part
				s.add(part)
			}
		}
		if len(others) > 0 {
			if err := p.takeLocks(s, rules, locks, others, leases); err != nil {
				return err
			}
		}
		s.leases = leases
		return nil
	})
}

// takeLocks takes the locks of the rules at the indexes in places, and puts their leases into
// leases.
func (p *partLocker) takeLocks(s *lockSet, rules, locks []Rule, places []int, leases []*Lease) error {
	wanted, first := make([]Rule, len(places)), make(map[string]string)
	for n, i := range places {
		wanted[n] = locks[i]
		if _, ok := first[locks[i].Key]; !ok {
			first[locks[i].Key] = rules[i].Key
		}
	}
	wanted = mergeByKey(wanted)
	roots, err := acquireAll(s.ctx, p.inner, wanted)
	if e, ok := errors.AsType[*Error](err); ok {
		return p.withCallerKey(err, first[e.Key])
	} else if err != nil {
		return err
	}
	taken := make(map[string]*Lease)
	for n, root := range roots {
		lock := wanted[n].Key
		taken[lock] = p.newFamily(root, lock, first[lock])
		s.leases = append(s.leases, taken[lock]) // if taking a part fails, all parts are released
	}
	for _, i := range places {
		of := taken[locks[i].Key]
		if leases[i] = of; of.rule.Key == rules[i].Key {
			continue
		}
		if leases[i], err = of.nest(s.ctx, rules[i]); err != nil {
			return err
		}
		s.leases = append(s.leases, leases[i])
	}
	return nil
}

// newFamily makes the family of root, a lease of the key lock that was just taken for key. It
// returns the first part of the family, which is the Lease of the caller.
func (p *partLocker) newFamily(root *Lease, lock, key string) *Lease {
	f := &family{locker: p.families, lock: lock, root: root, parts: make(map[*Lease]struct{})}
	l := &Lease{
		engine: root.engine, hold: root.hold, rule: root.rule, fence: root.fence, base: root.base,
		family: f, state: leaseState{began: root.state.began},
	}
	l.rule.Key = key // the key that the caller gave, even if the Locker inside uses another one
	f.parts[l] = struct{}{}
	root.state.onEnd(f.end)
	return l
}

// enter returns a nested Lease, which is a part of the lease in ctx that has the key lock. If ctx
// has no such lease, both results are nil. On a Locker of NewStriped, a caller that has rule's key
// itself is refused, as on every Locker that is not reentrant.
func (p *partLocker) enter(ctx context.Context, rule Rule, lock string) (*Lease, error) {
	var beside *Lease
	for l := range leasesIn(ctx) {
		switch {
		case l.family == nil || l.family.locker != p.families || l.family.lock != lock || errors.Is(l.state.contextCause(), ErrReleased):
		case !p.reentrant && l.rule.Key == rule.Key && l.state.endError() == nil:
			if l.rule.Limit > 0 && rule.Limit > 0 {
				return nil, nil // a semaphore: the caller takes further units with a permit of its own
			}
			if err := waitsForItself(l, rule); err != nil {
				return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
			}
			beside = cmp.Or(beside, l)
		case !p.reentrant && l.rule.Key == rule.Key:
			return nil, nil
		case beside == nil:
			beside = l
		}
	}
	if beside == nil {
		return nil, nil
	}
	nested, err := beside.nest(ctx, rule)
	if err == errNotHeld {
		return nil, nil
	}
	return nested, err
}

// errNotHeld refuses an Acquire with the context of a hold that was released.
var errNotHeld = errors.New("not held any more")

// nest returns a nested Lease, which is another part of l's lease, for a caller that acquires
// rule with a context of l.
func (l *Lease) nest(ctx context.Context, rule Rule) (*Lease, error) {
	cause := l.state.contextCause()
	if errors.Is(cause, ErrReleased) {
		return nil, errNotHeld
	}
	f := l.family
	rule, err := l.engine.cfg.resolve(rule)
	if err != nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
	}
	_, end := f.root.engine.cfg.observe(ctx, OpAcquire, rule)
	switch {
	case cause != nil:
		err = cause
	case ctx.Err() != nil:
		err = ctx.Err()
	default:
		err = f.checkNested(rule)
	}
	var nested *Lease
	if err == nil {
		nested, err = f.add(ctx, rule)
	}
	o := Outcome{Result: ResultNested, Fence: l.fence, TTL: rule.leaseTTL()}
	if err != nil {
		if err != errNotHeld {
			err = l.wrap(OpAcquire, err)
		}
		o = Outcome{Result: resultOf(OpAcquire, err), Err: err, TTL: rule.leaseTTL()}
	}
	finish(end, o)
	return nested, err
}

// checkNested returns nil if a nested hold with rule is possible without a call to the server.
func (f *family) checkNested(rule Rule) error {
	first := f.root.rule
	switch {
	case rule.Mode == Exclusive && first.Mode == Shared:
		return fmt.Errorf("%w: cannot upgrade a Shared lock to Exclusive (two upgrading readers would deadlock): release the Shared lock first, or acquire Exclusive from the start", ErrUnsupported)
	case rule.Weight > first.Weight:
		return fmt.Errorf("%w: the nested Weight of %d is more than the %d units of the outer hold; let the outer hold take all units", ErrUnsupported, rule.Weight, first.Weight)
	case rule.OnceFor > first.OnceFor:
		return fmt.Errorf("%w: the nested OnceFor of %v is longer than the OnceFor of the outer hold, %v; set OnceFor on the outer hold", ErrUnsupported, rule.OnceFor, first.OnceFor)
	case rule.KeepFor > 0 && instantOf(time.Now()).plus(rule.KeepFor) > f.root.engine.keeper.keepUntil(f.root.hold):
		return fmt.Errorf("%w: the nested KeepFor of %v ends later than the KeepFor of the outer hold; set KeepFor on the outer hold", ErrUnsupported, rule.KeepFor)
	}
	return nil
}

// Check calls the function Check for the Locker inside and the rule of the lock.
func (p *partLocker) Check(rule Rule) error {
	if p.stripes > 0 {
		rule.Key = cmp.Or(rule.Key, "key") // any key, because the real key is known only with a request
	}
	lock, err := p.lockOf(rule)
	if err != nil {
		return err
	}
	return Check(p.inner, lock)
}

// family is a lease of the Locker inside a reentrant Locker, the root, and the Leases that are its
// parts. Callers never see the root. A part can have all states that a Lease can have. The
// table shows the events, and their effect on the other parts:
//
//	a part is released      nothing, unless the part is the last one: then the root is released, or
//	                        completed if all parts with OnceFor were completed
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

// add makes a nested part for rule, and returns it.
func (f *family) add(ctx context.Context, rule Rule) (*Lease, error) {
	root := f.root
	l := &Lease{
		engine: root.engine, hold: root.hold, rule: rule, fence: root.fence, family: f,
		state: leaseState{began: time.Now()},
	}
	l.base, l.endHold = root.engine.cfg.observe(ctx, OpHold, rule)
	if err := f.enter(l); err != nil {
		finish(l.endHold, l.outcome(OpHold, err))
		return nil, err
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

// remove removes the part l, and reports whether l was the last part, and whether the work counts as
// done: a part with OnceFor was completed, and no such part failed. The parameter complete reports
// whether the caller of l has completed the work.
func (f *family) remove(l *Lease, complete bool) (last, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.rule.OnceFor > 0 {
		f.completed, f.failed = f.completed || complete, f.failed || !complete
	}
	delete(f.parts, l)
	f.left = true
	last = len(f.parts) == 0 && !f.ended
	f.ended = f.ended || last
	return last, f.completed && !f.failed
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

// giveUpPart ends the part l by a release, as Lease.giveUp ends a Lease.
func (f *family) giveUpPart(ctx context.Context, l *Lease, complete bool, calls *int) error {
	if lost := f.root.state.endError(); endedEarly(lost) { // in Close, the part may not have noticed the loss yet
		l.lose(lost)
	}
	if !l.state.end(ErrReleased) {
		return l.state.endError()
	}
	if last, done := f.remove(l, complete); last {
		return f.root.giveUp(ctx, done, calls)
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
	for l.family != nil {
		l = l.family.root
	}
	return l
}
