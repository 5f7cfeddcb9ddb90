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

// RunAll takes all locks that rules describe, calls fn, and releases them. It takes all locks or
// none. When one lock cannot be taken, RunAll releases the other locks, and returns the error of
// the lock that failed, with its key. This is ErrLost or ErrRevoked if a lock was lost while RunAll
// waited for the next one: fn has not run then. Without rules, RunAll calls fn at once.
//
// The locks are taken in the order of their keys, so calls with the same keys, in whatever order,
// cannot deadlock. If all keys are free and the Store can take several keys in one step, RunAll
// takes all locks in this step. Otherwise RunAll waits in the queue of each held lock in turn.
// During such a wait, RunAll holds the locks that come earlier in the order. So RunAll
// overtakes no other waiter, and no waiter starves. Each Rule's Wait counts from the call of
// RunAll, so with equal Waits the whole wait is at most one Wait.
//
// A key that is given several times is taken once, with the stricter value of each field:
// Exclusive, the shorter Wait and EndAfter, the longer TTL, KeepFor and OnceFor, the smaller Limit,
// and the larger Weight (not the sum).
//
// The context of fn ends with ctx, or with the first lease that ends, and context.Cause says
// whether ctx or a lease has ended. [LeasesFromContext] finds all leases. After fn, RunAll returns
// what [Run] would return. When several leases were lost, the error names all of them. With
// Rule.OnceFor, the work counts as done only if fn returned nil and no lease was lost by then.
//
// RunAll never waits for itself. If ctx has a lease of one of the keys from the same Locker, RunAll
// is refused with ErrSelfDeadlock. But a second Shared lease of a key is permitted, and so are
// further units of a semaphore if they are free. [NewReentrant] makes a Locker that permits such a
// nested RunAll. If ctx has a lease of another key, RunAll waits only for keys that sort after that
// key. If another caller holds a key that sorts before that key, the error is ErrBusy. The lease of
// a request that package idempotency runs does not count, except on a Locker of NewStriped.
func RunAll(ctx context.Context, l Locker, rules []Rule, fn func(ctx context.Context) error) error {
	switch {
	case fn == nil:
		return errNil(OpAcquire, "", "function", "the work to do under the locks")
	case len(rules) == 0:
		return fn(ctx)
	case isNil(l):
		return errNil(OpAcquire, rules[0].Key, "Locker", "one of New, and check its error")
	}
	taking, taken := beginTakes(ctx)
	defer taken()
	leases, err := acquireAll(taking, l, mergeByKey(rules))
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
		if !l.engine.runs.Enter() { // Close has begun since the grant
			for _, l := range leases {
				l.keepNothing()
			}
			_ = releaseAll(ctx, leases, false)
			return errClosed(l.rule.Key)
		}
		entered++
	}
	returned := false
	defer func() {
		if !returned { // fn panicked or called runtime.Goexit, which continues after the release
			_ = releaseAll(ctx, leases, false)
		}
	}()
	err = fn(contextOfAll(leases))
	returned = true
	return settleAll(ctx, leases, err)
}

// contextOfAll returns the context for RunAll's function, which ends with the first of the leases.
func contextOfAll(leases []*Lease) context.Context {
	ctx := leases[len(leases)-1].base // base ends with the caller's context
	held := heldIn(ctx)
	for _, l := range leases {
		ctx, held = l.state.derive(ctx), &heldList{lease: l, outer: held}
	}
	return &leaseContext{ctx, *held}
}

// settleAll releases the leases after fn returned err, and returns the error of RunAll.
func settleAll(ctx context.Context, leases []*Lease, err error) error {
	complete := err == nil
	for _, l := range leases {
		complete = complete && !endedEarly(l.state.endError())
	}
	var all []error
	if err != nil {
		all = append(all, err)
	}
	for i, released := range releaseAll(ctx, leases, complete) {
		if endedEarly(released) || complete && leases[i].rule.OnceFor > 0 && released != nil {
			all = append(all, released)
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// releaseAll releases or completes all leases at the same time, and returns the error of each. So a
// server that does not answer delays the caller only once, and not for each lease.
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

// mergeByKey returns rules sorted by key. It merges the rules of one key.
func mergeByKey(rules []Rule) []Rule {
	rules = slices.Clone(rules)
	slices.SortStableFunc(rules, func(a, b Rule) int { return strings.Compare(a.Key, b.Key) })
	n := 0
	for _, r := range rules[1:] {
		if rules[n].Key == r.Key {
			rules[n] = rules[n].merge(r)
		} else {
			n++
			rules[n] = r
		}
	}
	return rules[:n+1]
}

// merge returns a rule that satisfies both r and second, a rule for the same key.
func (r Rule) merge(second Rule) Rule {
	shorter := func(a, b time.Duration) time.Duration {
		if a == 0 || b == 0 {
			return a + b // one of the times is 0, which means: no limit
		}
		return min(a, b)
	}
	r.Name = cmp.Or(r.Name, second.Name)
	r.Mode = min(r.Mode, second.Mode)
	r.Wait, r.EndAfter = shorter(r.Wait, second.Wait), shorter(r.EndAfter, second.EndAfter)
	r.Limit = min(cmp.Or(r.Limit, second.Limit), cmp.Or(second.Limit, r.Limit))
	r.Weight = max(r.Weight, second.Weight)
	r.TTL, r.KeepFor, r.OnceFor = max(r.TTL, second.TTL), max(r.KeepFor, second.KeepFor), max(r.OnceFor, second.OnceFor)
	return r
}

// multiLocker is a Locker that has its own way to take several keys. The parameter rules is sorted
// by key, with each key once.
type multiLocker interface {
	acquireAll(ctx context.Context, rules []Rule) ([]*Lease, error)
}

// acquireAll takes all locks of rules or none, and returns the leases. ctx is the context of the
// takeState. The parameter rules is sorted by key, with each key once.
func acquireAll(ctx context.Context, l Locker, rules []Rule) ([]*Lease, error) {
	if s, ok := l.(multiLocker); ok {
		return s.acquireAll(ctx, rules)
	}
	began := time.Now()
	return gather(ctx, func(g *gathering) error {
		for _, rule := range rules {
			lease, err := l.Acquire(g.ctx, rule.withRemainingWait(began))
			if err != nil {
				return err
			}
			g.add(lease)
		}
		return nil
	})
}

// withRemainingWait returns the rule with the part of its Wait that is left, when the wait began at
// began.
func (r Rule) withRemainingWait(began time.Time) Rule {
	if r.Wait > 0 {
		if r.Wait -= time.Since(began); r.Wait <= 0 {
			r.Wait = NoWait
		}
	}
	return r
}

// gathering has the leases that a RunAll has taken so far. RunAll waits for its next lease with
// ctx, which ends when one of the taken leases ends.
type gathering struct {
	ctx    context.Context
	takes  *takeState // nil if no RunAll takes the leases
	leases []*Lease
}

// gather calls collect, and returns the leases that collect has added. If collect fails or panics,
// they are released, and KeepFor does not keep their keys.
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
			if lost := l.state.endError(); lost != nil { // the loss of l ended the wait for the next lease
				return nil, l.wrap(OpAcquire, lost)
			}
		}
		return nil, err
	}
	whole = true
	return g.leases, nil
}

// add adds l to the leases.
func (g *gathering) add(l *Lease) {
	g.leases = append(g.leases, l)
	g.takes.add(l)
	g.ctx = l.state.derive(g.ctx)
}
