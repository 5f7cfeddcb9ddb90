package locker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	renewBatch  = 100                   // holds per call
	renewCalls  = 8                     // calls under way, at most
	senderHangs = 20 * time.Millisecond // so long after the last call began, another one may
)

// enqueue hands holds to the senders. One is enough while the server answers, and leaves it time for others; there is another
// one when none of them has got ahead for a while. While all of them hang, what is due again is pending already: nothing
// piles up.
func (k *keeper) enqueue(holds []*hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range holds {
		if !h.pending {
			h.pending = true
			k.pending = append(k.pending, h)
		}
	}
	if len(k.pending) > 0 && k.senders < renewCalls && (k.senders == 0 || time.Since(k.sent) > senderHangs) {
		k.senders++
		ask(&k.engine.calls, func() (struct{}, error) { k.work(); return struct{}{}, nil })
	}
}

// work renews batch after batch until nothing is pending.
func (k *keeper) work() {
	for {
		holds, claims, start := k.batch()
		if len(claims) == 0 {
			return
		}
		k.send(holds, claims, start)
	}
}

// batch takes what goes into the next call. It leaves the holds out that have ended while they were pending: a release is
// not followed by a renewal. When nothing is left, the sender that asked is no sender any more.
func (k *keeper) batch() (holds []*hold, claims []Claim, start time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if n := min(len(k.pending), renewBatch); n > 0 {
		holds, claims = make([]*hold, 0, n), make([]Claim, 0, n)
	}
	for len(k.pending) > 0 && len(claims) < renewBatch {
		h := k.pending[0]
		k.pending[0] = nil
		k.pending = k.pending[1:]
		h.pending = false
		if h.index > 0 {
			holds = append(holds, h)
			claims = append(claims, h.renewalAt(now, h.next(now)))
		}
	}
	if k.sent = now; len(claims) == 0 {
		k.pending = nil
		k.senders--
	}
	return holds, claims, now
}

// renewalAt is a renewal by ttl that is sent now, no further than AtMost; the keeper's mutex is held.
func (h *hold) renewalAt(now time.Time, ttl time.Duration) Claim {
	if h.until != 0 {
		ttl = max(min(ttl, h.until.until(instantOf(now))), time.Millisecond)
	}
	return Claim{
		Key: h.claim.Key, Owner: h.claim.Owner, Mode: h.claim.Mode, TTL: ttl, Inbox: h.claim.Inbox, Fence: h.claim.Fence,
		Handed: h.handed > 0, Pass: h.claim.Pass,
	}
}

// next is by how much a renewal lengthens the hold; the confirmation of one that is never renewed changes nothing.
func (h *hold) next(now time.Time) time.Duration {
	if h.final {
		return max(min(h.each, h.deadline.until(instantOf(now))), time.Millisecond)
	}
	return h.each
}

// send makes one call.
func (k *keeper) send(holds []*hold, claims []Claim, start time.Time) {
	ctx, cancel := context.WithTimeout(k.engine.background, callTimeout)
	defer cancel()
	grants, err := k.engine.store.Renew(ctx, claims)
	if err == nil && len(grants) != len(claims) {
		err = fmt.Errorf("the Store answered %d of %d renewals", len(grants), len(claims))
	}
	if err != nil {
		k.failed(holds, err)
		return
	}
	for i, h := range holds {
		k.answered(h, grants[i], claims[i], start)
	}
}

// answered applies a Store's answer to a renewal that was sent at start. An answer for a hold that has ended meanwhile
// changes nothing: what is lost stays lost. It says whether it is still held.
func (k *keeper) answered(h *hold, g Grant, claim Claim, start time.Time) bool {
	switch g.State {
	case Granted:
		if g.Writer {
			k.engine.cohorts.closePhase(h)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.index == 0 {
			return false
		}
		if claim.Handed {
			h.handed = 0
		}
		k.pace(h)
		h.failure = nil
		ttl, next := claim.TTL, claim.TTL
		if g.Left > 0 {
			ttl = min(ttl, g.Left)
			next = max(ttl, 6*renewSlack) // what runs out is not asked about without a pause
		}
		h.deadline = max(h.deadline, instantOf(start).add(ttl-k.engine.cfg.drift(ttl)))
		k.plan(h, start, next)
		k.fix(h)
		return true
	case Revoked:
		k.lose(h, revokedBecause(g.Reason))
	case NotOurs:
		k.lose(h, fmt.Errorf("%w: the server says it is not ours", ErrLost))
	default: // no answer to a renewal
		k.failed([]*hold{h}, g.Err)
		return true
	}
	return false
}

// failed remembers why, for the message of a loss. A failed renewal is not a loss.
func (k *keeper) failed(holds []*hold, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range holds {
		h.failure = err
	}
}

// lose ends a hold that the server has given away.
func (k *keeper) lose(h *hold, why error) {
	if users, ok := k.drop(h); ok {
		h.lost(users, why, false)
	}
}

// retryAfter is when a renewal is sent again if it was not answered: several times within the rest of the lease. It is
// longer than renewSlack, or collect would take the same lease twice.
func retryAfter(ttl time.Duration) time.Duration {
	d := max(min(ttl/10, time.Second), 2*renewSlack)
	return d - d/10 + rand.N(d/5+1)
}
