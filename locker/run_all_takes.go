package locker

import (
	"context"
	"fmt"
	"sync"
)

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

// mindOrder prevents a RunAll from waiting for itself, or for a caller that may wait for the
// RunAll. No circle of waits can form if every caller waits only for keys that sort after all keys
// that it holds. So an acquire of an earlier key makes one attempt, and does not wait.
func (c *caller) mindOrder(ctx context.Context) error {
	t := takesIn(ctx)
	if t == nil {
		return nil
	}
	key := c.key()
	for _, l := range t.allLeases(ctx) {
		switch {
		case l.engine != c.engine || l.endError() != nil:
		case l.hold.claim.Key == key && l.Mode() == Shared && c.rule.Mode == Shared: // the caller reads with the same hold
		// Another caller may hold units too, and wait for the units of this caller.
		case l.hold.claim.Key == key && l.rule.Limit > 0 && c.rule.Limit > 0:
			c.laterKey, c.rule.Wait = l.rule.Key, NoWait
		case l.hold.claim.Key == key:
			return fmt.Errorf("%w: self-deadlock: the context given to RunAll already has a lease of this key; leave the key out, or take both through a Locker of NewReentrant", ErrUnsupported)
		case l.hold.claim.Key > key:
			c.laterKey, c.rule.Wait = l.rule.Key, NoWait
		}
	}
	return nil
}
