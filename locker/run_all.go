package locker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// RunAll takes all locks that rules describe, calls fn, and gives them up again. It is all or nothing: when one of them
// cannot be had, those that it has are released, and the error is that of the one, whose key it names. No rules: fn is called
// at once.
//
// The locks are taken in the order of their keys, so calls with the same keys in whatever order do not wait for each other
// for ever. Where they are free, and the Store can, all are taken in one step. Where somebody holds one, it is waited for in
// its queue while those before it are held: nobody is overtaken, and nobody starves. Each Rule's Wait counts from the call
// of RunAll, so equal Waits bound all of it together.
//
// A key that is given several times counts once: Exclusive wins over Shared, the shorter Wait and AtMost, and the
// longer TTL, AtLeast and Once, over the others.
//
// fn's context ends with ctx, or with the first lease that ends, and context.Cause says which; [LeasesFromContext] finds
// them all. What RunAll returns after fn is as with [Run]; when several leases were lost, all of them are named. With
// Rule.Once, the work counts as done only if fn returned nil and no lease was lost by then.
//
// RunAll never waits for itself. If ctx, as that of a Run around it, has a lease of one of the keys from the same Locker, it
// is refused with ErrUnsupported: [NewReentrant] makes a Locker that lets it in. If ctx has a lease of another key
// that sorts behind one of these, this one is not waited for: ErrBusy if it is held.
func RunAll(ctx context.Context, l Locker, rules []Rule, fn func(ctx context.Context) error) error {
	if len(rules) == 0 {
		return fn(ctx)
	}
	taking, taken := beginTakes(ctx)
	leases, err := acquireAll(taking, l, distinct(rules))
	taken()
	if err != nil {
		return err
	}
	entered := 0
	defer func() {
		for _, l := range leases[:entered] {
			l.engine.runs.Leave()
		}
	}()
	for _, l := range leases {
		if !l.engine.runs.Enter() { // Close came between the grant and here
			_ = releaseAll(ctx, leases, false)
			return &Error{Op: OpAcquire, Key: l.rule.Key, Err: ErrClosed}
		}
		entered++
	}
	returned := false
	defer func() {
		if !returned { // fn panicked or called runtime.Goexit; both go on after the release
			_ = releaseAll(ctx, leases, false)
		}
	}()
	err = fn(within(leases))
	returned = true
	return settleAll(ctx, leases, err)
}

// within is the context for RunAll's function.
func within(leases []*Lease) context.Context {
	ctx := leases[len(leases)-1].base // which ends with the caller's
	for _, l := range leases {
		ctx = l.around(ctx)
	}
	return ctx
}

// settleAll is settle for several leases.
func settleAll(ctx context.Context, leases []*Lease, err error) error {
	complete := err == nil
	for _, l := range leases {
		complete = complete && !endedEarly(l.ended())
	}
	var all []error
	if err != nil {
		all = append(all, err)
	}
	for i, released := range releaseAll(ctx, leases, complete) {
		if endedEarly(released) || complete && leases[i].rule.Once > 0 && released != nil {
			all = append(all, released)
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// releaseAll releases or completes all leases at the same time, so that a server that does not answer keeps the caller no
// longer than with one of them.
func releaseAll(ctx context.Context, leases []*Lease, complete bool) []error {
	errs := make([]error, len(leases))
	var others sync.WaitGroup
	for i, l := range leases {
		if i > 0 {
			others.Go(func() { errs[i] = l.release(ctx, complete) })
		}
	}
	if len(leases) > 0 {
		errs[0] = leases[0].release(ctx, complete)
	}
	others.Wait()
	return errs
}

// distinct sorts rules by key, with one for each key.
func distinct(rules []Rule) []Rule {
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(a, b Rule) int { return strings.Compare(a.Key, b.Key) })
	n := 0
	for _, r := range rules[1:] {
		if rules[n].Key == r.Key {
			rules[n] = rules[n].and(r)
		} else {
			n++
			rules[n] = r
		}
	}
	return rules[:n+1]
}

// and is what satisfies both rules, which have the same key.
func (r Rule) and(other Rule) Rule {
	shorter := func(a, b time.Duration) time.Duration {
		if a == 0 || b == 0 {
			return a + b // 0: as long as it takes
		}
		return min(a, b)
	}
	r.Name = cmp.Or(r.Name, other.Name)
	r.Mode = min(r.Mode, other.Mode)
	r.Wait, r.AtMost = shorter(r.Wait, other.Wait), shorter(r.AtMost, other.AtMost)
	r.TTL, r.AtLeast, r.Once = max(r.TTL, other.TTL), max(r.AtLeast, other.AtLeast), max(r.Once, other.Once)
	return r
}

// severally is a Locker that knows better than to take several keys one after the other. rules are sorted, each key once.
type severally interface {
	acquireAll(ctx context.Context, rules []Rule) ([]*Lease, error)
}

// acquireAll takes all locks or none. ctx is that of take; rules are sorted by key, each key once.
func acquireAll(ctx context.Context, l Locker, rules []Rule) ([]*Lease, error) {
	if s, ok := l.(severally); ok {
		return s.acquireAll(ctx, rules)
	}
	began := time.Now()
	return gather(ctx, func(g *gathering) error {
		for _, rule := range rules {
			lease, err := l.Acquire(g.ctx, rule.since(began))
			if err != nil {
				return err
			}
			g.add(lease)
		}
		return nil
	})
}

// since is the rule when a part of its Wait has passed.
func (r Rule) since(began time.Time) Rule {
	if r.Wait > 0 {
		if r.Wait -= time.Since(began); r.Wait <= 0 {
			r.Wait = NoWait
		}
	}
	return r
}

// gathering is the leases that a RunAll has so far. The next one is waited for with ctx, which ends when one of them does.
type gathering struct {
	ctx    context.Context
	takes  *takes // nil without a RunAll
	leases []*Lease
}

// gather returns the leases that collect adds. If it fails, or panics, they are released, and their keys are not kept for AtLeast.
func gather(ctx context.Context, collect func(*gathering) error) (leases []*Lease, err error) {
	g := &gathering{ctx: ctx, takes: takesIn(ctx)}
	whole := false
	defer func() {
		if !whole {
			for _, l := range g.leases {
				l.keepNothing()
			}
			_ = releaseAll(ctx, g.leases, false)
		}
	}()
	if err := collect(g); err != nil {
		for _, l := range g.leases {
			if lost := l.ended(); lost != nil { // that is why the wait for the next one ended
				return nil, l.wrap(OpAcquire, lost)
			}
		}
		return nil, err
	}
	whole = true
	return g.leases, nil
}

func (g *gathering) add(l *Lease) {
	g.leases = append(g.leases, l)
	g.takes.add(l)
	g.ctx = l.guard(g.ctx)
}
