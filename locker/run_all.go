package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// RunAll takes all locks that rules describe, calls fn, and releases them. It takes all locks or
// none: when one cannot be taken, it releases the others, and returns the error of the lock that
// failed, with its key. This is ErrLost or ErrRevoked if a lock was lost while RunAll waited for
// the next one. Without rules, RunAll calls fn at once.
//
// The locks are taken in the order of their keys, so calls with the same keys, in whatever order,
// cannot deadlock. If all keys are free, one step takes them all, if the Store can do that.
// Otherwise RunAll waits in the queue of each held lock in turn, and holds the locks that come
// earlier in the order. So it overtakes no other waiter, and no waiter starves. Each Rule's Wait
// counts from the call of RunAll.
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

// acquireAll takes the locks of a RunAll. If all keys are free and the Store can take several keys
// in one step, one call takes them all. Otherwise that step takes nothing, and each lock is taken
// alone, in order, with a normal wait. So a caller that wants many keys waits in one queue after the
// other, like every other caller. If instead the one step were repeated until it succeeds, the
// caller would overtake the waiters for single keys, or would never succeed.
func (e *Engine) acquireAll(ctx context.Context, rules []Rule) (leases []*Lease, err error) {
	began := time.Now()
	var all []*waiter
	returned := false
	defer func() {
		if !returned {
			err = errPanicked
		}
		for _, w := range all {
			if w.lease == nil {
				w.place.giveBack(e)
			}
			_, _ = w.report(nil, err) // no effect on a waiter that has a result already
			e.leaveAcquire()
		}
	}()
	for _, rule := range rules {
		w, err := e.newWaiter(ctx, rule)
		if err != nil {
			returned = true
			return nil, err
		}
		all = append(all, w)
	}
	for _, w := range all {
		w.observed, w.finish = e.cfg.observe(ctx, OpAcquire, w.rule)
	}
	leases, err = takeSet(ctx, func(s *lockSet) error {
		if taken, err := e.takeTogether(s, all, began); taken || err != nil {
			return err
		}
		for i, w := range all {
			if w.ctx, w.rule = s.ctx, w.rule.withRemainingWait(began); i > 0 {
				w.began = time.Now()
			}
			lease, err := w.report(w.run())
			if err != nil {
				return err
			}
			s.add(lease)
		}
		return nil
	})
	returned = true
	return leases, err
}

// takeTogether tries to take all locks in one step, and adds their leases to s. The step takes all
// or none. If taken is false, each lock must be taken alone. After a step without an answer, this is
// done with the tokens of the step, so that each acquire finds what the step has taken, or will take
// late.
func (e *Engine) takeTogether(s *lockSet, all []*waiter, began time.Time) (taken bool, err error) {
	apart := func(w *waiter) bool { return w.rule.Mode == Shared || w.rule.Limit > 0 } // one step does not suit them
	if over := s.ctx.Err() != nil || all[0].isRefused(); over || e.can.AcquireAll == nil || len(all) == 1 || slices.ContainsFunc(all, apart) {
		return false, nil
	}
	sentAt, claims := time.Now(), make([]store.Claim, len(all))
	for i, w := range all {
		w.describe()
		w.place.claim = w.newClaim()
		w.place.send(sentAt)
		w.calls++
		claims[i] = w.place.claim
	}
	grants, failure, err := e.askForAll(all, claims, began)
	if err != nil {
		return false, err
	}
	no, refused := errors.AsType[*store.Refusal](failure)
	refused = refused && !errors.Is(no, store.ErrNotReplicated)
	taken = failure == nil
	for i, w := range all {
		switch p := w.place; {
		case refused:
			p.token.endCall(callRefused)
		case failure != nil:
			p.token.endCall(callLost)
		default:
			p.token.endCall(p.eventOf(grants[i]))
			taken = taken && grants[i].State == store.Granted
		}
	}
	if taken {
		return true, s.addLeases(all, grants, sentAt)
	}
	for i, g := range grants {
		switch w := all[i]; {
		case g.State == store.Done:
			return false, w.fail(ErrDone, 0)
		case g.State == store.Busy && g.Holder.Left != 0 && w.rule.Wait == NoWait:
			w.noteBusy(g)
			return false, w.giveUp(errWaitOver)
		}
	}
	for _, w := range all {
		if w.place.token.state == tokenNowhere {
			w.own = place{} // the acquire of this lock alone has a token of its own
		}
	}
	return false, nil
}

// askForAll asks the Store for all claims in one step, and waits for the answer. If the step has no
// answer, failure says why. If the caller must not wait any longer, err is the error for it.
func (e *Engine) askForAll(all []*waiter, claims []store.Claim, began time.Time) (grants []store.Grant, failure, err error) {
	first := all[0] // the one that waits for the shortest time
	for _, w := range all {
		if w.rule.Wait > 0 && (first.rule.Wait <= 0 || w.rule.Wait < first.rule.Wait) {
			first = w
		}
	}
	limit, over := unansweredFor+lateBy, false // whether the Wait is over by then
	if left := first.rule.Wait - time.Since(began); first.rule.Wait > 0 && left < limit {
		limit, over = max(left, 0), true
	}
	timer := e.timers.Start(limit)
	defer e.timers.Stop(timer)
	// The call may go on after this function has returned, so these waiters are not recycled.
	var answers []store.Grant
	var failed error
	answered, calling := make(chan struct{}), all[0].observed
	e.calls.Do(func() {
		defer close(answered)
		if answers, failed = e.can.AcquireAll(calling, claims); failed == nil && len(answers) != len(claims) {
			failed = fmt.Errorf("the Store answered %d of %d claims", len(answers), len(claims))
		}
	})
	what, why := first.await(&awaited{answer: answered, timer: timer.C})
	switch {
	case what == answerCame:
		return answers, failed, nil
	case what == timerFired && !over:
		return nil, errNoAnswer, nil
	case what == timerFired:
		why = errWaitOver
	}
	if time.Since(first.place.sentAt) > freshGrant {
		first.failure = errNoAnswer
	}
	return nil, nil, first.giveUp(why)
}

// addLeases makes the leases of the grants, one for each of the waiters, and adds them to s. The
// deadlines count from sentAt.
func (s *lockSet) addLeases(all []*waiter, grants []store.Grant, sentAt time.Time) error {
	for i, w := range all {
		w.ctx = s.ctx
		if w.newLease(grants[i], sentAt, 0); w.lease == nil {
			return cmp.Or(w.err, w.fail(asUnavailable(cmp.Or(w.failure, errNoAnswer)), 0))
		}
		lease, err := w.report(w.lease, nil)
		if err != nil {
			return err
		}
		s.add(lease)
	}
	return nil
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
