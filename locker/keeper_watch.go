package locker

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// observedRenewal is what the Observer receives about one renewal.
type observedRenewal struct {
	ctx   context.Context
	rule  Rule
	event RenewalEvent
}

// collectRenewals returns what the Observer will receive about renewals, before their answers
// change the holds. For each index i in places, holds[i] was renewed by claims[i], and grants[i] is
// the answer. Without an Observer, collectRenewals returns nil. A hold that no Lease uses at the
// moment is left out.
func (k *keeper) collectRenewals(places []int, holds []*hold, claims []store.Claim, grants []store.Grant) (events []observedRenewal) {
	if _, ok := k.engine.cfg.observer.(RenewalObserver); !ok {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := instantOf(time.Now())
	for _, i := range places {
		if h := holds[i]; h.index > 0 && h.lease != nil {
			events = append(events, observedRenewal{h.lease.base, h.lease.rule, RenewalEvent{
				Margin: h.deadline.sub(now), TTL: claims[i].TTL, Err: failureOf(grants[i]),
			}})
		}
	}
	return events
}

// notifyRenewals reports the renewals in events to the Observer. It uses a goroutine of its own,
// because a slow Observer must not delay the answers to other renewals.
func (k *keeper) notifyRenewals(events []observedRenewal) {
	if len(events) == 0 {
		return
	}
	o := k.engine.cfg.observer.(RenewalObserver)
	k.engine.calls.Do(func() {
		for _, r := range events {
			r.notify(o)
		}
	})
}

// notify reports the renewal to the Observer o.
func (r observedRenewal) notify(o RenewalObserver) {
	defer absorb("Renewed")
	o.Renewed(r.ctx, r.rule, r.event)
}
