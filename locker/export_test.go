package locker

import (
	"context"
	"time"
)

// MarkDelegated takes the last step of Delegate before the question to the server.
func MarkDelegated(l *Lease) bool { return l.engine.keeper.delegated(l.root()) }

// DriftOf returns the part of a lease of that length that is not used.
func DriftOf(e *Engine, ttl time.Duration) time.Duration { return e.cfg.drift(ttl) }

// LateReader is an acquire of a reader that has found no open phase, but joins its cohort after a
// phase has opened.
func (e *Engine) LateReader(ctx context.Context, r Rule) (*Lease, error) {
	a, err := e.newAcquisition(ctx, r)
	if err != nil {
		return nil, err
	}
	defer e.acquires.Leave()
	t, _ := e.cohorts.share(a.rule, a.adaptive)
	e.cohorts.join(a, t, false)
	turn, err := a.turnComes()
	if err != nil {
		return nil, err
	}
	return a.takeOver(turn), nil
}

// Suspend simulates that the Engine's machine was suspended for d.
func Suspend(e *Engine, d time.Duration) {
	e.keeper.mu.Lock()
	defer e.keeper.mu.Unlock()
	e.keeper.clocks.set += d
}

// NewWithBackgroundRelease is New with WithBackgroundRelease, for a test's own Store.
func NewWithBackgroundRelease(s Store, opts ...Option) (*Engine, error) {
	cfg, err := configure(opts, Option.set)
	cfg.background = true
	return newEngine(s, cfg), err
}

// StripeOf returns the key on the server of the stripe of key. l is a Locker of NewStriped.
func StripeOf(l Locker, key string) string {
	rule, err := l.(*striped).stripe(Rule{Key: key})
	if err != nil {
		panic(err)
	}
	return rule.Key
}
