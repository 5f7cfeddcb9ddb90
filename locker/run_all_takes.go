package locker

import (
	"context"
	"fmt"
	"sync"
)

// takes is one RunAll while it takes its locks. It travels in the context, through Lockers of whatever kind, to the Engine:
// there it is known which locks are the same, and in which order they stand.
type takes struct {
	mu     sync.Mutex
	leases []*Lease // so far
	over   bool     // it has them all, or has given up: what follows is the caller's own
}

// beginTakes marks the acquires that are made with the context, until over is called.
func beginTakes(ctx context.Context) (_ context.Context, over func()) {
	t := new(takes)
	ctx = context.WithValue(ctx, leaseKey{}, &held{takes: t, outer: heldIn(ctx)})
	return ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.over = true
	}
}

// takesIn is the RunAll for which an acquire with this context is made; nil: none.
func takesIn(ctx context.Context) *takes {
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.takes != nil && !h.takes.isOver() {
			return h.takes
		}
	}
	return nil
}

func (t *takes) add(l *Lease) {
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.leases = append(t.leases, l)
	}
}

func (t *takes) isOver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// all is what the RunAll has so far, and what its caller had before.
func (t *takes) all(ctx context.Context) []*Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(LeasesFromContext(ctx), t.leases...)
}

// mindOrder keeps a RunAll from waiting for itself, and for somebody who may be waiting for it. If all wait only for keys
// behind those that they hold, no circle can close; so an acquire against the order makes one attempt and does not wait.
func (a *acquisition) mindOrder(ctx context.Context) error {
	t := takesIn(ctx)
	if t == nil {
		return nil
	}
	key := a.key()
	for _, l := range t.all(ctx) {
		switch {
		case l.engine != a.engine || l.ended() != nil:
		case l.hold.claim.Key == key && l.Mode() == Shared && a.rule.Mode == Shared: // it reads along
		case l.hold.claim.Key == key:
			return fmt.Errorf("%w: the context given to RunAll has a lease of this lock already, and would wait for itself; leave the key out, or take both through a Locker of NewReentrant", ErrUnsupported)
		case l.hold.claim.Key > key:
			a.behind, a.rule.Wait = l.rule.Key, NoWait
		}
	}
	return nil
}
