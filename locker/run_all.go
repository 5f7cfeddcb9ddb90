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
// none: when one cannot be taken, it releases the others, and returns the error of the lock that
// failed, with its key. This is ErrLost or ErrRevoked if a lock was lost while RunAll waited for
// the next one. Without rules, RunAll calls fn at once.
//
// The locks are taken in the order of their keys, so calls with the same keys, in whatever order,
// cannot deadlock. RunAll waits in the queue of each held lock in turn, and holds the locks that come
// earlier in the order. So it overtakes no other waiter, and no waiter starves. Each Rule's Wait
// counts from the call of RunAll. Each lock needs a round trip.
//
// A key that is given several times is taken once, with the stricter value of each field:
// Exclusive, the shorter Wait and EndAfter, the longer TTL, KeepFor and OnceFor, the smaller Limit,
// and the larger Weight (not the sum).
//
// The context of fn ends with ctx, or with the first lease that ends, and context.Cause says which.
// [LeasesFromContext] finds all leases. After fn, RunAll returns what [Run] would return. When
// several leases were lost, the error names all of them. With Rule.OnceFor, the work counts as done
// only if fn returned nil and no lease was lost by then.
//
// RunAll never waits for itself. If ctx has a lease of one of the keys from the same Locker, RunAll
// is refused with ErrSelfDeadlock, except for a second Shared lease, for further units of a
// semaphore if they are free, and on a Locker of [NewReentrant]. If ctx has a lease of another key,
// RunAll waits only for keys that sort after that key; if another caller holds a key that sorts
// before it, the error is ErrBusy. The lease of a request that package idempotency runs does not
// count, except on a Locker of NewStriped.
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

var _, _ multiLocker = (*Engine)(nil), (*partLocker)(nil)

// acquireAll takes all locks of rules or none, and returns the leases. ctx is the context of the
// takeState. The parameter rules is sorted by key, with each key once.
func acquireAll(ctx context.Context, l Locker, rules []Rule) ([]*Lease, error) {
	if s, ok := l.(multiLocker); ok {
		return s.acquireAll(ctx, rules)
	}
	return acquireEach(ctx, l, rules)
}

// acquireEach takes the locks one after the other, in the order of their keys. So a caller that wants
// many keys waits in one queue after the other, like every other caller. If it took them all in one
// step, it would overtake the waiters for single keys, or would never succeed.
func acquireEach(ctx context.Context, l Locker, rules []Rule) ([]*Lease, error) {
	began := time.Now()
	return takeSet(ctx, func(s *lockSet) error {
		for _, rule := range rules {
			lease, err := l.Acquire(s.ctx, rule.withRemainingWait(began))
			if err != nil {
				return err
			}
			s.add(lease)
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

// lockSet has the leases that a RunAll has taken so far. RunAll waits for its next lease with ctx,
// which ends when one of the taken leases ends.
type lockSet struct {
	ctx    context.Context
	takes  *takeState // nil if no RunAll takes the leases
	leases []*Lease
}

// takeSet calls take, and returns the leases that take has added. If take fails or panics, they are
// released, and KeepFor does not keep their keys.
func takeSet(ctx context.Context, take func(*lockSet) error) (leases []*Lease, err error) {
	s := &lockSet{ctx: ctx, takes: takesIn(ctx)}
	whole := false
	defer func() {
		if !whole {
			for _, l := range s.leases {
				l.keepNothing()
			}
			_ = releaseAll(ctx, s.leases, false)
		}
	}()
	if err := take(s); err != nil {
		for _, l := range s.leases {
			if lost := l.state.endError(); lost != nil { // the loss of l ended the wait for the next lease
				return nil, l.wrap(OpAcquire, lost)
			}
		}
		return nil, err
	}
	whole = true
	return s.leases, nil
}

// add adds l to the leases.
func (s *lockSet) add(l *Lease) {
	s.leases = append(s.leases, l)
	s.takes.add(l)
	s.ctx = l.state.derive(s.ctx)
}

// acquireAll takes the locks of a RunAll, if each rule can be granted.
func (e *Engine) acquireAll(ctx context.Context, rules []Rule) ([]*Lease, error) {
	for _, rule := range rules {
		if _, err := e.cfg.resolve(rule); err != nil {
			return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
		}
	}
	return acquireEach(ctx, e, rules)
}

// takeState is the state of a RunAll that still takes its locks. The context carries it through
// Lockers of any kind to the Engine. So the Engine knows which locks the RunAll already has, and
// the order of their keys.
type takeState struct {
	mu     sync.Mutex
	leases []*Lease    // the leases taken so far
	asked  []orderStep // with WithOrderCheck: the last locks that the RunAll asked for, as Taken
	// True if the RunAll has all its leases or has failed. Later acquires with the context do not
	// belong to this RunAll.
	ended bool
}

// beginTakes returns a context that marks the acquires of a RunAll until the function end is
// called.
func beginTakes(ctx context.Context) (_ context.Context, end func()) {
	t := new(takeState)
	ctx = context.WithValue(ctx, leaseKey{}, &heldList{takes: t, outer: heldIn(ctx)})
	return ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ended = true
	}
}

// takesIn returns the state of the RunAll to which an acquire with the context ctx belongs, or nil
// if there is none.
func takesIn(ctx context.Context) *takeState {
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.takes != nil && !h.takes.hasEnded() {
			return h.takes
		}
	}
	return nil
}

func (t *takeState) add(l *Lease) {
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.leases = append(t.leases, l)
	}
}

// hasEnded reports whether the RunAll has all its leases or has failed.
func (t *takeState) hasEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// allLeases returns the leases that the RunAll has taken so far, and the leases that its caller had
// before.
func (t *takeState) allLeases(ctx context.Context) []*Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(LeasesFromContext(ctx), t.leases...)
}
