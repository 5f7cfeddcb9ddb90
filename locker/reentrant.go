package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/typednil"
)

// NewReentrant returns a Locker over l that grants a lock again to its holder. The context alone
// identifies the holder. A holder's context is the context of [Run]'s function, [Lease.Context], or
// a context derived from these contexts. An Acquire with a holder's context gets a Lease with the
// holder's fence at once, without a call to the server. All other callers wait.
//
// Each hold is a Lease with a Release of its own. The holds may be released in any order. The lock
// is released with the last hold. When the lease is lost, all holds end. From then on, an
// Acquire with a context of one of these holds is refused with the error of the loss, for
// example ErrLost. An Acquire with such a context never takes a new lease silently. The context
// of a released hold has ended, so an Acquire with this context fails. A caller may have kept a
// context without the cancellation, by context.WithoutCancel. An Acquire with such a context
// gets a part of an outer hold that is still held, or otherwise waits like any other caller.
//
// Goroutines with a holder's context, or with contexts derived from it, are one holder. Each
// goroutine gets a nested hold, so the lock does not exclude these goroutines from each other.
//
// A nested hold has the mode of the first hold. So an acquire with Shared inside an Exclusive hold
// gets an Exclusive hold. An acquire with Exclusive inside a Shared hold is refused at once with
// ErrUnsupported, because two such callers would wait for each other. [Lease.Downgrade] needs a
// lease with one hold only. The list says what each field of a nested Rule means:
//
//	TTL      is ignored: the lease is renewed as before. Extend lengthens it for all holds, and shortens it
//	         only for the last one
//	EndAfter   ends the nested hold with ErrExpired, and does not affect the others. EndAfter of the first hold ends
//	         all holds
//	KeepFor  must end no later than KeepFor of the first hold, because the server is not asked. Otherwise
//	         ErrUnsupported
//	OnceFor     must be no longer than OnceFor of the first hold, which has asked whether the work is done. Otherwise
//	         ErrUnsupported. The work counts as done if all holds with OnceFor were completed
//	Wait     is ignored
//
// The Observer of l sees a nested acquire with [ResultNested], and the operations of nested holds.
// When the Locker is not used any more, close the Engine inside.
func NewReentrant(l Locker) (Locker, error) {
	if typednil.Is(l) {
		return nil, errors.New("latchkit: NewReentrant: the Locker is nil; make one with New, and check its error")
	}
	return &reentrant{inner: l}, nil
}

// reentrant is a Locker over another Locker. Each Lease that it grants is a part of a lease of
// that Locker.
type reentrant struct{ inner Locker }

var _ multiLocker = (*reentrant)(nil)

func (r *reentrant) Acquire(ctx context.Context, rule Rule) (*Lease, error) {
	if part, err := r.enter(ctx, rule); part != nil || err != nil {
		return part, err
	}
	root, err := r.inner.Acquire(ctx, rule)
	if err != nil {
		return nil, err
	}
	return r.newFamily(root, rule.Key), nil
}

// acquireAll makes a nested Lease, which is a part of the outer lease, for each key whose lease
// is in ctx. It takes the other keys through the Locker inside.
func (r *reentrant) acquireAll(ctx context.Context, rules []Rule) ([]*Lease, error) {
	return gather(ctx, func(g *gathering) error {
		leases := make([]*Lease, len(rules))
		var others []Rule
		var places []int
		for i, rule := range rules {
			part, err := r.enter(ctx, rule)
			switch {
			case err != nil:
				return err
			case part == nil:
				others, places = append(others, rule), append(places, i)
			default:
				leases[i] = part
				g.add(part)
			}
		}
		if len(others) > 0 {
			roots, err := acquireAll(g.ctx, r.inner, others)
			if err != nil {
				return err
			}
			for n, root := range roots {
				leases[places[n]] = r.newFamily(root, others[n].Key)
			}
		}
		g.leases = leases
		return nil
	})
}

// newFamily makes the family of root, a lease that was just taken for key, and returns its
// first part, which is the Lease of the caller.
func (r *reentrant) newFamily(root *Lease, key string) *Lease {
	f := &family{locker: r, root: root, parts: make(map[*Lease]struct{})}
	l := &Lease{
		engine: root.engine, hold: root.hold, rule: root.rule, fence: root.fence, base: root.base,
		part: &part{family: f}, state: leaseState{mode: root.Mode(), began: root.state.began},
	}
	l.rule.Key = key // the key that the caller gave, even if the Locker inside uses another one
	f.parts[l] = struct{}{}
	root.state.onEnd(f.end)
	return l
}

// enter returns a nested Lease, which is a part of the lease in ctx that has rule's key. If ctx
// has no such lease, both results are nil.
func (r *reentrant) enter(ctx context.Context, rule Rule) (*Lease, error) {
	for h := heldIn(ctx); h != nil; h = h.outer {
		l := h.lease
		if l == nil || l.part == nil || l.part.family.locker != r || l.rule.Key != rule.Key {
			continue
		}
		if nested, err := l.nest(ctx, rule); err != errNotHeld {
			return nested, err
		}
	}
	return nil, nil
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
	f := l.part.family
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

// errNoUpgrade refuses an acquire with Exclusive inside a Shared hold.
var errNoUpgrade = fmt.Errorf("%w: cannot upgrade a Shared lock to Exclusive (two upgrading readers would deadlock): release the Shared lock first, or acquire Exclusive from the start", ErrUnsupported)

// checkNested returns nil if a nested hold with rule is possible without a call to the server.
func (f *family) checkNested(rule Rule) error {
	first := f.root.rule
	switch {
	case rule.Mode == Exclusive && f.root.Mode() == Shared:
		return errNoUpgrade
	case rule.Weight > first.Weight:
		return fmt.Errorf("%w: the nested Weight of %d is more than the %d units of the outer hold; let the outer hold take all units", ErrUnsupported, rule.Weight, first.Weight)
	case rule.OnceFor > first.OnceFor:
		return fmt.Errorf("%w: the nested OnceFor of %v is longer than the OnceFor of the outer hold, %v; set OnceFor on the outer hold", ErrUnsupported, rule.OnceFor, first.OnceFor)
	case rule.KeepFor > 0 && instantOf(time.Now()).plus(rule.KeepFor) > f.root.hold.keepUntil:
		return fmt.Errorf("%w: the nested KeepFor of %v ends later than the KeepFor of the outer hold; set KeepFor on the outer hold", ErrUnsupported, rule.KeepFor)
	}
	return nil
}

// Check calls the method Check of the Locker inside.
func (r *reentrant) Check(rule Rule) error { return Check(r.inner, rule) }
