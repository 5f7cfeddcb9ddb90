package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

var _ multiLocker = (*Engine)(nil)

// acquireAll takes the locks of a RunAll. If all keys are free and the Store can take several
// keys in one step, one call takes them all. Otherwise that step takes nothing. Then each lock
// up to the first held lock is taken alone, in order, with a normal wait. After that, RunAll
// tries again to take the remaining keys in one step. So a caller that wants many keys waits in
// one queue after the other, like every other caller. If instead the one step were repeated
// until it succeeds, the caller would overtake the waiters for single keys, or would never
// succeed.
func (e *Engine) acquireAll(ctx context.Context, rules []Rule) (leases []*Lease, err error) {
	began := time.Now()
	var all []*waiter
	returned := false
	defer func() {
		if !returned {
			err = errPanicked
		}
		for _, a := range all {
			_, _ = a.report(nil, err) // no effect on a waiter that has a result already
			e.leaveAcquire()
		}
	}()
	for _, rule := range rules {
		a, err := e.newWaiter(ctx, rule)
		if err != nil {
			returned = true
			return nil, err
		}
		all = append(all, a)
	}
	for _, a := range all {
		a.observe()
	}
	leases, err = gather(ctx, func(g *gathering) error {
		for rest := all; len(rest) > 0; {
			alone, err := e.takeTogether(g, rest, began)
			if err != nil || alone == 0 {
				return err
			}
			for _, a := range rest[:alone] {
				a.ctx, a.rule, a.began = g.ctx, a.rule.withRemainingWait(began), time.Now()
				lease, err := a.report(a.run())
				if err != nil {
					return err
				}
				g.add(lease)
			}
			rest = rest[alone:]
		}
		return nil
	})
	returned = true
	return leases, err
}

// takeTogether tries to take all leases in one step. If the step takes all leases, aloneCount is 0.
// Otherwise the step takes none. Then the leases up to the first key that is held must be taken
// alone, and aloneCount is the number of these leases.
func (e *Engine) takeTogether(g *gathering, all []*waiter, began time.Time) (aloneCount int, err error) {
	// A step for all keys does not suit readers and permits.
	apart := func(a *waiter) bool { return a.rule.Mode == Shared || a.rule.Limit > 0 }
	if over := g.ctx.Err() != nil || all[0].isRefused(); over || e.can.AcquireAll == nil || len(all) == 1 || slices.ContainsFunc(all, apart) {
		return len(all), nil
	}
	j := joint{all: all, began: began, sentAt: time.Now()}
	for _, a := range all {
		j.prepare(a)
	}
	// The call may continue after this function has returned, so these waiters are not
	// recycled.
	grants, failure, err := j.ask(g)
	for asked := j.sentAt; err == nil && failure != nil && j.asksAgain(failure, asked); {
		time.Sleep(jointPause)
		j.unclear, j.sentAt = true, time.Now()
		for _, a := range all {
			a.place.token.endCall(callLost)
			a.place.send(j.sentAt)
			a.calls++
		}
		grants, failure, err = j.ask(g)
	}
	switch no := (*store.Refusal)(nil); {
	case err != nil:
		return 0, err
	// Then each lock is taken alone. Each acquire reports its own refusal, or is repeated. But after
	// an earlier question without an answer, other tokens could meet leases of these tokens.
	case !j.unclear && errors.As(failure, &no):
		j.forget()
		return len(all), nil
	case failure != nil:
		return len(all), j.undo(failure)
	}
	for i, g := range grants {
		if g.State == store.Done {
			j.forget()
			return 0, all[i].fail(ErrDone, 0)
		}
		if a := all[i]; g.State == store.Busy && g.Holder.Left != 0 && a.rule.Wait == NoWait {
			a.noteBusy(g)
			j.forget()
			return 0, a.giveUp(errWaitOver)
		}
	}
	for i, g := range grants {
		if g.State != store.Granted && g.State != store.NotOurs { // NotOurs: the key is free, but others are not
			j.forget()
			return i + 1, nil
		}
	}
	return 0, j.newLeases(g, grants)
}

// joint is one attempt to take several keys, with a token for each key.
type joint struct {
	all    []*waiter
	claims []store.Claim
	began  time.Time // when the RunAll began
	sentAt time.Time

	unclear bool // a call has ended without an answer, so the tokens may hold leases, now or later
}

// asksAgain reports whether a question that has ended with failure, without an answer, is repeated
// with the same tokens. This is for callers with NoWait, for unansweredFor since the first question
// was asked. With other tokens they would be refused because of their own leases. A caller that
// waits asks with other tokens.
func (j *joint) asksAgain(failure error, asked time.Time) bool {
	_, refused := errors.AsType[*store.Refusal](failure)
	if refused || errors.Is(failure, store.ErrNotReplicated) || time.Since(asked) >= unansweredFor {
		return false
	}
	return slices.ContainsFunc(j.all, func(a *waiter) bool { return a.rule.Wait == NoWait })
}

// prepare adds the claim of a, which wants one of the keys.
func (j *joint) prepare(a *waiter) {
	a.describe()
	a.place = &a.own
	a.place.claim = a.newClaim()
	a.calls++
	a.place.send(j.sentAt)
	j.claims = append(j.claims, a.place.claim)
}

// ask makes the call and waits for its answer. If the call fails, failure is its error. If the end
// of ctx, the shortest Wait or Close ends the wait, waitErr is the error for the caller.
func (j *joint) ask(g *gathering) (grants []store.Grant, failure, waitErr error) {
	first := j.all[0]
	for _, a := range j.all {
		if a.rule.Wait > 0 && (first.rule.Wait <= 0 || a.rule.Wait < first.rule.Wait) {
			first = a
		}
	}
	e, all := first.engine, waiter{engine: first.engine, ctx: g.ctx, refused: first.refused}
	if first.rule.Wait > 0 {
		timer := e.timers.Start(max(first.rule.Wait-time.Since(j.began), 0))
		defer e.timers.Stop(timer)
		all.expiry = timer.C
	}
	var answers []store.Grant
	var failed error
	answered, calling, claims := make(chan struct{}), j.all[0].observed, j.claims
	e.calls.Do(func() {
		defer close(answered)
		if answers, failed = e.can.AcquireAll(calling, claims); failed == nil && len(answers) != len(claims) {
			failed = fmt.Errorf("the Store answered %d of %d claims", len(answers), len(claims))
		}
	})
	silence, end := e.silence()
	defer end()
	returned := false
	defer func() {
		if !returned { // a method of ctx has panicked
			_ = j.undo(errNoAnswer)
		}
	}()
	ready, over := all.await(&awaited{answer: answered, silence: silence})
	returned = true
	switch ready {
	case answerCame:
		return answers, failed, nil
	case silenceOver:
		return nil, errNoAnswer, nil
	default:
		if time.Since(j.sentAt) > freshGrant {
			first.failure = errNoAnswer
		}
		_ = j.undo(errNoAnswer)
		return nil, nil, first.giveUp(over)
	}
}

// undo undoes a call that has ended with failure and without an answer, so that the caller may ask
// for the keys again with other tokens. If the call still takes leases, they are released, so that
// their keys are free for the other tokens. If a Rule does not allow the caller to wait for the
// undo, the error is not nil.
func (j *joint) undo(failure error) error {
	j.unclear = true
	j.forget()
	for _, a := range j.all {
		if a.rule.Wait == NoWait {
			return a.fail(asUnavailable(failure), 0)
		}
	}
	return nil
}

// forget drops the tokens, which hold nothing after the last question. If an earlier question had
// no answer, they are undone.
func (j *joint) forget() {
	for _, a := range j.all {
		if j.unclear {
			a.place.token.endCall(callLost)
			a.place.giveBack(a.engine)
		}
		a.own = place{holder: a.place.holder, position: a.place.position}
		a.place = &a.own
	}
}

// newLeases makes the leases of the grants, and adds them to g.
func (j *joint) newLeases(g *gathering, grants []store.Grant) error {
	for _, a := range j.all {
		a.place.token.endCall(answerGranted)
	}
	taken := 0
	defer func() { // deferred, because a method of ctx may panic
		for _, a := range j.all[taken:] {
			a.place.giveBack(a.engine)
		}
	}()
	for i, a := range j.all {
		a.ctx = g.ctx
		a.newLease(grants[i], j.sentAt, 0)
		lease, err := a.lease, a.err
		if lease == nil {
			return cmp.Or(err, a.fail(asUnavailable(cmp.Or(a.failure, errNoAnswer)), 0))
		}
		taken++
		if lease, err = a.report(lease, nil); err != nil {
			return err
		}
		g.add(lease)
	}
	return nil
}

// takeState is the state of a RunAll that still takes its locks. The context carries it through
// Lockers of any kind to the Engine. So the Engine knows which locks the RunAll already has, and
// the order of their keys.
type takeState struct {
	mu     sync.Mutex
	leases []*Lease // the leases taken so far
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
