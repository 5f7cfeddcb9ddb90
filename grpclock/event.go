package grpclock

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// requestObserver is a Locker whose Observer counts requests. Every Engine is a requestObserver.
type requestObserver interface {
	ObserveRequest(ctx context.Context, e locker.RequestEvent)
}

// These are the results of calls without a Problem.
const (
	eventAcquired  = "acquired"
	eventUnguarded = "unguarded"
)

// unnamed is the lock's name for a call that was refused before its rule was looked up.
const unnamed = "lock"

// event reports the result of the lock called name to the Locker's Observer.
func (g *guard) event(ctx context.Context, name, result string, waited time.Duration) {
	if g.events != nil {
		g.events.ObserveRequest(ctx, locker.RequestEvent{Name: name, Result: result, Waited: waited})
	}
}

// acquired reports that a call got its locks. began is the time at which the call asked for the
// locks.
func (g *guard) acquired(ctx context.Context, locks []locker.Rule, began time.Time) {
	if g.events != nil {
		g.event(ctx, locks[0].Name, eventAcquired, time.Since(began))
	}
}

// refused reports why a call did not get its lock, or lost it.
func (g *guard) refused(ctx context.Context, p *Problem) {
	if g.events != nil {
		g.event(ctx, cmp.Or(p.Rule, unnamed), strings.ToLower(p.Reason), 0)
	}
}
