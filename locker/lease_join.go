package locker

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// joinedFor is how long a joined lease lasts without an answer from the server, which is asked
// three times in this period. So after a release of the lease, the work of a joined caller
// continues for at most joinedFor.
const joinedFor = 3 * time.Second

// Delegate lets a call that presents the Delegation join this lease. The call gets a Lease of its
// own with the same fence. The call can neither release this lease nor keep its own Lease after the
// end of this lease. The caller of Delegate may give the SHA-256 of a secret. Then Delegate
// registers the Delegation at the server, and the first call must join before timeout
// is over. Without a secret, Delegate calls no server, and the caller must prevent forgeries. depth
// is how many times the lease may be delegated again. With depth 1, a call that joins may delegate
// the lease to a further call, but the further call may not delegate it.
//
// A lease that was delegated is not handed over inside this process: its Release goes to the
// server. The end of ctx ends the call of Delegate.
//
// Errors: ErrLost, ErrReleased or another error of a lease that has ended; ErrUnsupported when
// leases of this Locker cannot be joined, or when this lease is itself joined and may not be
// delegated again; ErrUnavailable; ctx.Err().
func (l *Lease) Delegate(ctx context.Context, secret [32]byte, timeout time.Duration, depth int) (Delegation, error) {
	p, err := l.delegate(ctx, secret, timeout, depth)
	if err != nil {
		return Delegation{}, l.wrap(OpDelegate, err)
	}
	return p, nil
}

// delegate does the work of Delegate.
func (l *Lease) delegate(ctx context.Context, secret [32]byte, timeout time.Duration, depth int) (Delegation, error) {
	e, h := l.engine, l.hold
	joiner, ok := e.joiner()
	p := Delegation{Secret: secret, Fence: l.fence, Hold: h.fence, Depth: max(depth, 0)}
	switch joined := h.claim.Delegation; {
	case !ok || l.rule.Mode == Shared || l.rule.Limit > 0:
		return p, fmt.Errorf("%w: leases of this kind cannot be joined", ErrUnsupported)
	case l.rule.Mode == Exclusive && joined == nil:
	case secret != [32]byte{}: // the server checks whether the lease may be delegated again
	case joined.Secret != [32]byte{}:
		return p, fmt.Errorf("%w: the lease was joined with a secret; delegate it with a secret too", ErrUnsupported)
	case joined.Depth < 1:
		return p, fmt.Errorf("%w: this lease cannot be delegated any further", ErrUnsupported)
	default:
		p.Hold, p.Depth = joined.Hold, min(p.Depth, joined.Depth-1)
	}
	if timeout < time.Millisecond || timeout > longestTime {
		return p, fmt.Errorf("%w: Delegate for %v; give 1ms to 10 years", ErrInvalidRule, timeout)
	}
	if err := l.contextCause(); err != nil {
		return p, err
	}
	if err := ctx.Err(); err != nil {
		return p, err
	}
	if !e.keeper.markDelegated(l.root()) { // a Release has begun meanwhile
		return p, ErrReleased
	}
	if secret == [32]byte{} {
		return p, nil
	}
	claim := store.Claim{Key: h.claim.Key, Owner: h.claim.Owner, Mode: h.claim.Mode}
	select {
	case a := <-calls.Ask(&e.calls, func() (store.Grant, error) {
		return joiner.Delegate(calls.Until(context.WithoutCancel(ctx), time.Now().Add(calls.Timeout)), claim, p, timeout)
	}):
		switch {
		case a.Err != nil:
			return p, asUnavailable(a.Err)
		case a.Value.State == store.Granted:
			return p, nil
		case h.claim.Delegation != nil:
			return p, fmt.Errorf("%w: the lease that was joined is over, or cannot be delegated any further", ErrUnsupported)
		}
		return p, errTaken
	case <-l.Context().Done():
		return p, l.contextCause()
	case <-ctx.Done():
		return p, ctx.Err()
	}
}

// joiner returns the Store's Joiner, if leases can be joined.
func (e *Engine) joiner() (store.Joiner, bool) {
	if j, ok := e.store.(joins); ok {
		return j.store, true
	}
	j, ok := e.store.(store.Joiner)
	return j, ok
}

// Join joins the lease of rule.Key that another call has delegated by p. The returned Lease has the
// fence of the joined lease, and ends when the joined lease ends. Until then, this process asks the
// server at least once a second whether the joined lease is still held. After 3 s without an
// answer, the returned Lease ends too. Releasing the returned Lease does not release the joined
// lease. Release of the returned Lease returns ErrLost if the joined lease has already ended. Join
// uses only the fields Key, Name and TTL of rule, and TTL only if it is shorter than 3 s. Join does
// not wait for the lock, so the end of ctx ends only the call.
//
// The error is an [*Error]: ErrRefused when p does not name a lease that is held; ErrUnsupported,
// ErrUnavailable, ErrInvalidKey, ErrInvalidRule, ErrClosed; ctx.Err().
func (e *Engine) Join(ctx context.Context, rule Rule, p Delegation) (*Lease, error) {
	if e.joined == nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: fmt.Errorf("%w: leases of this Locker cannot be joined", ErrUnsupported)}
	}
	if rule.TTL == 0 || rule.TTL > joinedFor {
		rule.TTL = joinedFor
	}
	return e.joined.acquire(ctx, Rule{Key: rule.Key, Name: rule.Name, TTL: rule.TTL, Wait: NoWait}, &p)
}

// joinedEngine makes the Engine of this process's joined leases, on the Store s. It renews, loses
// and releases them like other leases, but each of these steps asks the server about the lease that
// was joined.
func joinedEngine(s store.Joiner, cfg config) *Engine {
	cfg.queue, cfg.handoffs, cfg.renewal = false, 1, true
	cfg.metadata, cfg.adaptiveTTL, cfg.maxTTL = nil, bounds{}, 0
	e := newEngine(joins{s}, cfg)
	if j, ok := s.(calls.Joins); ok {
		e.steps = joinSteps{e.foreign, j}
	}
	return e
}

// joinSteps asks for all joined leases at the same time. Each question is a call of its own, but
// the calls travel together because they are sent at the same time.
type joinSteps struct {
	*calls.Foreign
	joins calls.Joins
}

// BeginRenew asks whether the leases of cs are still held, and passes the answers to onAnswer.
func (s joinSteps) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	grants := make([]store.Grant, len(cs))
	for i, c := range cs {
		s.joins.BeginJoin(ctx, c, func(g store.Grant, err error) {
			g.Left, g.Err = min(g.Left, joinedFor), err
			grants[i] = g
			onAnswer([]int{i}, grants)
		})
	}
}

// joins is the Store of leases that were joined.
type joins struct{ store store.Joiner }

// Acquire joins the lease.
func (j joins) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	g, err := j.store.Join(ctx, c)
	if err == nil && g.State == store.NotOurs {
		return g, &store.Refusal{Err: ErrRefused}
	}
	g.Left = min(g.Left, joinedFor)
	return g, err
}

// Renew asks whether the leases are still held.
func (j joins) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	grants := make([]store.Grant, len(cs))
	// If a question has no answer, its lease stays as it is, because the next question follows
	// soon.
	for i, c := range cs {
		g, err := j.store.Join(ctx, c)
		g.Left, g.Err = min(g.Left, joinedFor), err
		grants[i] = g
	}
	return grants, nil
}

// Release ends the use of the joined lease by one caller.
func (j joins) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return j.store.Leave(ctx, c)
}
