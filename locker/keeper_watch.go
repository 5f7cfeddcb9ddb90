package locker

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// renewed is what the Observer receives about one renewal.
type renewed struct {
	ctx   context.Context
	rule  Rule
	event RenewalEvent
}

// For each answer, watch collects what the Observer will receive, before the answer changes its
// hold. Without an Observer, watch returns nil. A hold that no Lease uses at the moment is left
// out.
func (k *keeper) watch(places []int, holds []*hold, claims []store.Claim, grants []store.Grant) (seen []renewed) {
	if _, ok := k.engine.cfg.observer.(RenewalObserver); !ok {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := instantOf(time.Now())
	for _, i := range places {
		if h := holds[i]; h.index > 0 && h.lease != nil {
			seen = append(seen, renewed{h.lease.base, h.lease.rule, RenewalEvent{
				Margin: h.deadline.until(now), TTL: claims[i].TTL, Err: failureOf(grants[i]),
			}})
		}
	}
	return seen
}

// notify reports renewals to the Observer. It uses a goroutine of its own, because a slow Observer
// must not delay the answers to other renewals.
func (k *keeper) notify(seen []renewed) {
	if len(seen) == 0 {
		return
	}
	o := k.engine.cfg.observer.(RenewalObserver)
	k.engine.calls.Do(func() {
		for _, r := range seen {
			r.notify(o)
		}
	})
}

// notify reports one renewal.
func (r renewed) notify(o RenewalObserver) {
	defer absorb("Renewed")
	o.Renewed(r.ctx, r.rule, r.event)
}
