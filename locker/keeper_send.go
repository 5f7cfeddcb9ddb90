package locker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// mostUnanswered is the largest number of unanswered renewals of one hold. Without this limit,
// renewals would pile up when the Store hangs.
const mostUnanswered = 8

// send sends the renewals of the holds in due to the Store, which may answer them one by one. It
// leaves out holds that have ended meanwhile, so that no renewal follows a release. The TTL of each
// renewal counts from now, even if the renewal waits before it is sent.
func (k *keeper) send(due []*hold) {
	start := time.Now()
	holds, claims := make([]*hold, 0, len(due)), make([]store.Claim, 0, len(due))
	k.mu.Lock()
	for _, h := range due {
		if h.renewal.index > 0 && h.renewal.unanswered < mostUnanswered {
			h.renewal.unanswered++
			holds = append(holds, h)
			claims = append(claims, h.renewalAt(start, h.nextTTL(start)))
		}
	}
	k.mu.Unlock()
	if len(claims) == 0 {
		return
	}
	k.engine.steps.BeginRenew(k.engine.background, claims, func(places []int, grants []store.Grant) {
		k.mu.Lock()
		for _, i := range places {
			holds[i].renewal.unanswered--
		}
		k.mu.Unlock()
		seen := k.collectRenewals(places, holds, claims, grants)
		for _, i := range places {
			k.applyAnswer(holds[i], grants[i], claims[i], start)
		}
		k.notifyRenewals(seen)
	})
}

// renewalAt returns the claim of a renewal that is sent at the time now. The claim asks for ttl, or
// less if EndAfter ends the lease before. The caller holds the keeper's mutex.
func (h *hold) renewalAt(now time.Time, ttl time.Duration) store.Claim {
	if h.renewal.atMostEnd != 0 {
		ttl = max(min(ttl, h.renewal.atMostEnd.sub(instantOf(now))), time.Millisecond)
	}
	return store.Claim{
		Key: h.claim.Key, Owner: h.claim.Owner, Mode: h.claim.Mode, TTL: ttl, Inbox: h.claim.Inbox, Fence: h.claim.Fence,
		ByHandoff: h.renewal.handoffTTL > 0,
	}
}

// nextTTL returns the TTL for the next renewal of the hold, which is sent at the time now. For a
// hold that is never renewed, nextTTL returns the time that the hold has left, because then the
// call only confirms the hold. If only EndAfter ends the hold, renewalAt knows that time exactly.
func (h *hold) nextTTL(now time.Time) time.Duration {
	if h.renewal.final && (h.renewal.atMostEnd == 0 || !h.engine.cfg.renewal) {
		return max(min(h.renewal.renewTTL, h.renewal.deadline.load().sub(instantOf(now))), time.Millisecond)
	}
	return h.renewal.renewTTL
}

// applyAnswer applies g, the Store's answer to a renewal of h. The renewal had the given claim,
// and was sent at the time start. It reports whether h is still held. If h has ended meanwhile,
// the answer changes nothing: a lost hold stays lost.
func (k *keeper) applyAnswer(h *hold, g store.Grant, claim store.Claim, start time.Time) bool {
	switch g.State {
	case store.Granted:
		if g.Writer {
			k.engine.cohorts.closePhase(h)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.renewal.index == 0 {
			return false
		}
		if claim.ByHandoff {
			h.renewal.handoffTTL = 0
		}
		k.noteDelay(h)
		h.renewal.failure = nil
		now := time.Now()
		k.lookForSuspension(now) // before the new deadline is stored, from which the gain is not missing
		k.planRenewal(h, instantOf(start), claim.TTL)
		end := instantOf(start).plus(claim.TTL - k.engine.cfg.drift(claim.TTL))
		gain := k.clocks.gained(start, now) // the answer may be from before a suspension
		if gain > 0 {
			end = h.endAfterSuspension(end, instantOf(now), gain)
		}
		if h.renewal.doubtful = gain > 0 && !h.renewal.final; h.renewal.doubtful {
			h.renewal.renewAt = instantOf(now)
		}
		if gain == 0 || !h.renewal.final { // otherwise no renewal follows that could prove the old deadline
			end = max(h.renewal.deadline.load(), end)
		}
		h.renewal.deadline.store(end)
		k.reschedule(h)
		return true
	case store.Revoked, store.NotOurs:
		k.lose(h, failureOf(g))
	default: // a Store must not answer a renewal with any other state
		k.mu.Lock()
		defer k.mu.Unlock()
		h.renewal.failure = g.Err // the message of a later loss contains the error; a failed renewal is no loss
		return true
	}
	return false
}

// failureOf returns nil when the answer g confirms a renewal. Otherwise it returns the reason.
func failureOf(g store.Grant) error {
	switch g.State {
	case store.Granted:
		return nil
	case store.Revoked:
		return revokedBecause(g.Reason)
	case store.NotOurs:
		return errTaken
	default:
		return asUnavailable(g.Err)
	}
}

// lose ends h for the given reason. The server has given the key to another holder, or does not
// know the lease. If h has left the schedule, another call deals with the end of h.
func (k *keeper) lose(h *hold, reason error) {
	k.mu.Lock()
	if h.renewal.index == 0 {
		k.mu.Unlock()
		return
	}
	k.due.remove(h)
	users := h.renewal.leases()
	k.mu.Unlock()
	h.handleLoss(users, reason, false)
}

// repeatPause returns the pause before an unanswered renewal of a lease of ttl is sent again. The
// pause is so short that several repetitions are possible before the lease ends. This pause is
// longer than renewSlack, because otherwise collect would take the same hold twice.
func repeatPause(ttl time.Duration) time.Duration {
	d := max(min(ttl/10, time.Second), 2*renewSlack)
	return d - d/10 + rand.N(d/5+1)
}

// ttlTuner sets the TTL of leases to ten times the longest delay of a recent renewal. A longer
// TTL would only delay the detection of a crash.
type ttlTuner struct {
	bounds

	mu    sync.Mutex
	delay time.Duration // the delay from a due renewal to its answer; rises at once, falls slowly
}

const (
	ttlFactor   = 10 // the TTL is the delay times this factor
	fallDivisor = 16 // a smaller delay lowers the field delay by 1/fallDivisor of the difference
)

// observe records the delay of one renewal. The delay begins when the renewal is due. This
// delay ends when the renewal is answered, or is repeated.
func (p *ttlTuner) observe(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delay = max(delay, 0)
	if delay >= p.delay {
		p.delay = delay
	} else {
		p.delay -= (p.delay - delay) / fallDivisor
	}
}

// ttl returns the TTL to ask for now.
func (p *ttlTuner) ttl() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clamp(p.delay * ttlFactor)
}
