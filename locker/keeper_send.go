package locker

import (
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// mostUnanswered is the largest number of unanswered renewals of one hold. Without this limit,
// renewals would pile up when the Store hangs.
const mostUnanswered = 8

// send sends the renewals of holds to the Store, which may answer them one by one. It leaves out
// holds that have ended meanwhile, so that no renewal follows a release. The TTL of each renewal
// counts from now, even if the renewal waits before it is sent.
func (k *keeper) send(due []*hold) {
	start := time.Now()
	holds, claims := make([]*hold, 0, len(due)), make([]store.Claim, 0, len(due))
	k.mu.Lock()
	for _, h := range due {
		if h.index > 0 && h.unanswered < mostUnanswered {
			h.unanswered++
			holds = append(holds, h)
			claims = append(claims, h.renewalAt(start, h.next(start)))
		}
	}
	k.mu.Unlock()
	if len(claims) == 0 {
		return
	}
	k.engine.steps.BeginRenew(k.engine.background, claims, func(places []int, grants []store.Grant) {
		k.mu.Lock()
		for _, i := range places {
			holds[i].unanswered--
		}
		k.mu.Unlock()
		seen := k.watch(places, holds, claims, grants)
		for _, i := range places {
			k.answered(holds[i], grants[i], claims[i], start)
		}
		k.notify(seen)
	})
}

// renewalAt returns the claim of a renewal that is sent now. The claim asks for ttl, or less if
// AtMost ends the lease before. The keeper's mutex is held.
func (h *hold) renewalAt(now time.Time, ttl time.Duration) store.Claim {
	if h.until != 0 {
		ttl = max(min(ttl, h.until.until(instantOf(now))), time.Millisecond)
	}
	return store.Claim{
		Key: h.claim.Key, Owner: h.claim.Owner, Mode: h.claim.Mode, TTL: ttl, Inbox: h.claim.Inbox, Fence: h.claim.Fence,
		ByHandoff: h.handed > 0, Delegation: h.claim.Delegation,
	}
}

// next returns the TTL for the next renewal of the hold. For a hold that is never renewed, next
// returns the time that the hold has left, because then the call only confirms the hold.
func (h *hold) next(now time.Time) time.Duration {
	if h.final {
		return max(min(h.each, h.deadline.until(instantOf(now))), time.Millisecond)
	}
	return h.each
}

// answered applies a Store's answer to a renewal that was sent at start, and reports whether the
// hold is still held. If the hold has ended meanwhile, the answer changes nothing: a lost hold
// stays lost.
func (k *keeper) answered(h *hold, g store.Grant, claim store.Claim, start time.Time) bool {
	switch g.State {
	case store.Granted:
		if g.Writer {
			k.engine.cohorts.closePhase(h)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.index == 0 {
			return false
		}
		if claim.ByHandoff {
			h.handed = 0
		}
		k.noteDelay(h)
		h.failure = nil
		ttl, next := claim.TTL, claim.TTL
		if g.Left > 0 {
			ttl = min(ttl, g.Left)
			// Near the end of a lease, the server answers each renewal with a shorter time.
			// This minimum keeps a pause between the renewals.
			next = max(ttl, 6*renewSlack)
		}
		h.deadline = max(h.deadline, instantOf(start).plus(ttl-k.engine.cfg.drift(ttl)))
		k.plan(h, instantOf(start), next)
		k.fix(h)
		return true
	case store.Revoked, store.NotOurs:
		k.lose(h, failureOf(g))
	default: // a Store must not answer a renewal with any other state
		k.renewalFailed([]*hold{h}, g.Err)
		return true
	}
	return false
}

// failureOf returns nil when an answer confirms a renewal. Otherwise it returns the reason.
func failureOf(g store.Grant) error {
	switch g.State {
	case store.Granted:
		return nil
	case store.Revoked:
		return revokedBecause(g.Reason)
	case store.NotOurs:
		return errTaken
	default:
		return unavailable(g.Err)
	}
}

// renewalFailed keeps the error, so that the message of a later loss can contain it. A failed
// renewal is not a loss.
func (k *keeper) renewalFailed(holds []*hold, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range holds {
		h.failure = err
	}
}

// lose ends a hold that the server has given to another holder, or that the server does not know.
func (k *keeper) lose(h *hold, why error) {
	if users, ok := k.drop(h); ok {
		h.lost(users, why, false)
	}
}

// retryAfter returns the pause before an unanswered renewal is sent again. The pause is so short
// that several repetitions are possible before the lease ends. It is longer than renewSlack,
// because otherwise collect would take the same hold twice.
func retryAfter(ttl time.Duration) time.Duration {
	d := max(min(ttl/10, time.Second), 2*renewSlack)
	return d - d/10 + rand.N(d/5+1)
}
