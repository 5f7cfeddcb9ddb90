package locker

import (
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// retryAfter returns the time after which another try may succeed. The result is an estimate with
// jitter, so that callers that were refused at the same time do not ask again at the same time. The
// remaining TTL is a poor estimate, because the lease is renewed. Only for a key that Rule.KeepFor
// keeps locked, the remaining time is certain.
func (w *waiter) retryAfter() time.Duration {
	if w.place.holder.Kept && w.place.holder.Left > 0 {
		return w.place.holder.Left
	}
	after := min(w.remaining(), maxRetryAfter)
	after += rand.N(after/4 + 1)
	return max(after, time.Millisecond)
}

// remaining estimates how long it takes until the caller could have the key: the time that the
// holder still needs, plus the time that the waiters ahead need after the holder. The waiters count
// for at most maxRetryAfter.
//
// A holder is expected to hold the key as long as earlier holders of this Name in this process did.
// If this holder has already held the key for longer, the rest is expected to be half as long
// as the part that is over. If this process has seen no earlier holder, the rest is expected to
// be as long as the part that is over. So a caller that waits as advised doubles its pause each
// time, and comes late by about the length of one hold.
func (w *waiter) remaining() time.Duration {
	var held time.Duration
	if !w.heldSince.IsZero() {
		held = max(time.Since(w.heldSince), 0)
	}
	guess := max(held, firstGuess)
	rest, each := guess, 2*guess
	if usual := w.engine.times.meanHold(w.rule.Name); usual > 0 {
		each = max(usual, held)
		if rest = usual - held; rest <= usual/8 {
			rest = max(held/2, usual/8)
		}
	}
	if w.place.holder.Left >= 0 {
		rest = min(rest, w.place.holder.Left)
	}
	ahead, turn := int64(max(w.place.position-1, 0)), int64(each)/int64(w.rule.maxHolders())
	if ahead > 0 && turn > int64(maxRetryAfter)/ahead {
		return maxRetryAfter // the product could overflow
	}
	return rest + time.Duration(turn*ahead)
}

// holdsSince returns the local time at which the holder h got the key. The parameter clock is
// the time of the server's clock in an answer that names h, and sentAt is the time at which the
// question was sent. On one server, a fence is the server's clock at the grant, unless the
// counter ran ahead of the clock.
func holdsSince(h store.Holder, clock, sentAt time.Time) time.Time {
	if h.Foreign || h.Fence == 0 || clock.IsZero() {
		return time.Time{}
	}
	held := clock.Sub(time.UnixMicro(int64(h.Fence)))
	if held < 0 || held > longestTime {
		return time.Time{}
	}
	return sentAt.Add(-held)
}
