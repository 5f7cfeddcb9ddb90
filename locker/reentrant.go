package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/typednil"
)

// NewReentrant returns a Locker over l that lets its holders in again. Who holds a lock is told by the context, and by nothing
// else: an Acquire with a context that descends from a lease of this Locker with the same key (that of [Run]'s function, or
// [Lease.Context]) joins it, at once and without asking the server, and gets a Lease with the same fence. All other
// callers are strangers, and wait.
//
// Each hold is a Lease with a Release of its own, in any order; the lock is given up with the last. A loss ends them all, and
// from then on an Acquire with one of their contexts is refused with how it ended, ErrLost for example: it never
// begins anew in silence. A hold that was released lends its context no rights any more; those of a hold around it still do.
//
// Goroutines that share or fork a holder's context are one holder: they come in together, and must exclude each other by
// themselves where they must.
//
// A nested hold is what the first one is. Shared inside Exclusive joins it; Exclusive inside Shared is refused at once
// with ErrUnsupported, because two who try that would wait for each other. [Lease.Downgrade] is for who holds the lock alone.
// Of the nested Rule:
//
//	TTL      does not matter: the lease goes on being renewed as before. Extend lengthens it for all holds, and shortens it
//	         only for the last one
//	AtMost   ends the nested hold with ErrExpired, and leaves the others alone. That of the first hold ends all
//	AtLeast  no later than that of the first hold: the server is not asked. Otherwise ErrUnsupported
//	Once     no longer than that of the first hold, which has asked whether the work is done. Otherwise ErrUnsupported. The work counts
//	         as done if all holds with Once were completed
//	Wait     does not matter
//
// The Observer sees a nested acquire with [ResultNested], and what is done with a nested hold. [WithObserver] names
// another one for that. Without l every Acquire is refused. Close the Engine inside, when nobody uses this any more.
func NewReentrant(l Locker, opts ...ReentrantOption) Locker {
	r := &reentrant{inner: l}
	if typednil.Is(l) {
		r.refusal = fmt.Errorf("%w: NewReentrant was given no Locker", ErrUnsupported)
		return r
	}
	var c config
	for i, o := range opts {
		if o == nil {
			r.refusal = fmt.Errorf("%w: option %d of NewReentrant is nil; leave it out instead", ErrUnsupported, i+1)
			return r
		}
		o.setReentrant(&c)
	}
	if c.observer != nil {
		r.cfg = &config{observer: c.observer}
	}
	return r
}

// reentrant is a Locker that hands out parts of the leases of another one.
type reentrant struct {
	inner   Locker
	cfg     *config // whose Observer is told of nested holds; nil: that of the Locker inside
	refusal error   // of every acquire
}

var _ severally = (*reentrant)(nil)

// observed is where nested holds of a lease are observed.
func (r *reentrant) observed(root *Lease) *config {
	if r.cfg != nil {
		return r.cfg
	}
	return root.config()
}

func (r *reentrant) Acquire(ctx context.Context, rule Rule) (*Lease, error) {
	if r.refusal != nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: r.refusal}
	}
	if part, err := r.enter(ctx, rule); part != nil || err != nil {
		return part, err
	}
	root, err := r.inner.Acquire(ctx, rule)
	if err != nil {
		return nil, err
	}
	return r.found(root, rule.Key), nil
}

// acquireAll joins what the context holds, and takes the others as the Locker inside does.
func (r *reentrant) acquireAll(ctx context.Context, rules []Rule) ([]*Lease, error) {
	if r.refusal != nil {
		return nil, &Error{Op: OpAcquire, Key: rules[0].Key, Err: r.refusal}
	}
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
				leases[places[n]] = r.found(root, others[n].Key)
			}
		}
		g.leases = leases
		return nil
	})
}

// found makes the first part of a lease that was just taken.
func (r *reentrant) found(root *Lease, key string) *Lease {
	f := &family{of: r, root: root, parts: make(map[*Lease]struct{})}
	l := &Lease{
		engine: root.engine, hold: root.hold, rule: root.rule, mode: root.Mode(), fence: root.fence, began: root.began, base: root.base,
		part: &part{family: f, cfg: root.config()},
	}
	l.rule.Key = key // what it is known by here, whatever the Locker inside makes of it
	f.parts[l] = struct{}{}
	root.onEnd(f.end)
	return l
}

// enter joins the lease that ctx has of the key. Neither a lease nor an error means that it has none.
func (r *reentrant) enter(ctx context.Context, rule Rule) (*Lease, error) {
	for h := heldIn(ctx); h != nil; h = h.outer {
		l := h.lease
		if l == nil || l.part == nil || l.part.family.of != r || l.rule.Key != rule.Key {
			continue
		}
		if nested, err := l.nest(ctx, rule); err != errNotHeld {
			return nested, err
		}
	}
	return nil, nil
}

// errNotHeld: the hold was released, so who has its context holds nothing by it.
var errNotHeld = errors.New("not held any more")

// nest makes another part of the lease that l is a part of, for who has a context of l.
func (l *Lease) nest(ctx context.Context, rule Rule) (*Lease, error) {
	cause := l.gone()
	if errors.Is(cause, ErrReleased) {
		return nil, errNotHeld
	}
	f := l.part.family
	rule, err := l.engine.cfg.resolve(rule)
	if err != nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
	}
	_, end := f.of.observed(f.root).observe(ctx, OpAcquire, rule)
	switch {
	case cause != nil:
		err = cause
	case ctx.Err() != nil:
		err = ctx.Err()
	default:
		err = f.allows(rule)
	}
	var nested *Lease
	if err == nil {
		nested, err = f.add(ctx, rule)
	}
	o := Outcome{Result: ResultNested, Fence: l.fence, TTL: rule.lease()}
	if err != nil {
		if err != errNotHeld {
			err = l.wrap(OpAcquire, err)
		}
		o = Outcome{Result: resultOf(OpAcquire, err), Err: err, TTL: rule.lease()}
	}
	finish(end, o)
	return nested, err
}

// errNoUpgrade refuses Exclusive inside Shared.
var errNoUpgrade = fmt.Errorf("%w: cannot upgrade a Shared lock to Exclusive (two upgrading readers would deadlock): release the Shared lock first, or acquire Exclusive from the start", ErrUnsupported)

// allows says whether a nested hold can be had without asking the server.
func (f *family) allows(rule Rule) error {
	first := f.root.rule
	switch {
	case rule.Mode == Exclusive && f.root.Mode() == Shared:
		return errNoUpgrade
	case rule.Once > first.Once:
		return fmt.Errorf("%w: a nested Once of %v, and %v of the hold around it, which has asked whether the work is done; put Once there", ErrUnsupported, rule.Once, first.Once)
	case rule.AtLeast > 0 && time.Now().Add(rule.AtLeast).After(f.root.hold.keep):
		return fmt.Errorf("%w: a nested AtLeast of %v is over later than that of the hold around it, and the server is not asked; put AtLeast there", ErrUnsupported, rule.AtLeast)
	}
	return nil
}
