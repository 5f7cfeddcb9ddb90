package locker

import (
	"context"
	"time"
)

// DriftOf returns how much of the TTL the holder does not use, because clocks run at different
// rates.
func DriftOf(e *Engine, ttl time.Duration) time.Duration { return e.cfg.drift(ttl) }

// LateReader acquires like a reader that has looked for an open phase, has found none, and
// enters its cohort only after a phase has opened.
func (e *Engine) LateReader(ctx context.Context, r Rule) (*Lease, error) {
	a, err := e.newAcquisition(ctx, r)
	if err != nil {
		return nil, err
	}
	defer e.leaveAcquire()
	t, _ := e.cohorts.sharedTerms(a.caller.rule, a.caller.adaptive)
	e.cohorts.enter(a, t, false)
	turn, err := a.awaitTurn()
	if err != nil {
		return nil, err
	}
	return a.takeOver(turn), nil
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
