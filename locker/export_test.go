package locker

import (
	"context"
	"time"
)

// LongestStreak is the largest number of callers in a streak.
const LongestStreak = longestStreak

// WithHandoffs sets how many callers are at most in a streak, so that a test sees its end soon.
func WithHandoffs(n int) Option { return anyOption(func(c *config) { c.handoffs = n }) }

// DriftOf returns how much of the TTL the holder does not use, because clocks run at different
// rates.
func DriftOf(e *Engine, ttl time.Duration) time.Duration { return e.cfg.drift(ttl) }

// LateReader acquires like a reader that has looked for an open phase, has found none, and
// enters its cohort only after a phase has opened.
func (e *Engine) LateReader(ctx context.Context, r Rule) (*Lease, error) {
	w, err := e.newWaiter(ctx, r)
	if err != nil {
		return nil, err
	}
	defer e.leaveAcquire()
	t, _ := e.cohorts.sharedTerms(w.rule, w.adaptive)
	e.cohorts.enter(w, t, false)
	a := awaited{turns: w.turns}
	if _, why := w.await(&a); why != nil {
		return nil, why
	}
	return w.takeOver(a.turn), nil
}

// Suspend simulates that the Engine's machine was suspended for d.
func Suspend(e *Engine, d time.Duration) {
	e.keeper.mu.Lock()
	defer e.keeper.mu.Unlock()
	e.keeper.clocks.testLead += d
	e.keeper.clocks.testFrom = instantOf(time.Now())
}

// StopKeeper simulates that e's goroutine for deadlines gets no CPU time.
func StopKeeper(e *Engine) { e.keeper.stop() }

// StripeOf returns the key that the stripe of key has on the server. l is a Locker of NewStriped.
func StripeOf(l Locker, key string) string {
	rule, err := l.(*partLocker).lockOf(Rule{Key: key})
	if err != nil {
		panic(err)
	}
	return rule.Key
}
