package locker

import (
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// hold is what the server knows as one lease: one token, from its grant to its release or loss.
// Usually one [Lease] uses a hold. In a streak, several Leases use it one after the other, each
// with a fence of its own from the block.
type hold struct {
	engine   *Engine
	claim    store.Claim   // the claim that was granted; for a reader, with the fence of its phase
	fence    uint64        // the first fence of the block
	ttl      time.Duration // the TTL that was asked for
	start    instant       // the time from which deadlines count; it is not later than the grant
	received instant       // when this process received the grant; the time of a streak counts from then
	// keepUntil is the time until which Rule.KeepFor keeps the key, counted from when this process
	// received the grant. 0: the Rule has no KeepFor. It is set before the grant is published;
	// keepNothing clears it under the keeper's mutex.
	keepUntil instant
	block     int32 // the number of fences in the block

	// The small fields stay together, because many holds are held at once.
	unclear bool // an acquire of claim.Owner is unanswered, so the release must undo it
	posted  bool // a message about claim.Owner may still arrive

	// Guarded by the cohorts' mutex:
	closed bool  // Shared: no further Lease may use the hold
	ended  bool  // the hold is being released, or is lost
	used   int32 // how many fences of the block were given out
	users  int32 // if Shared: how many Leases use the hold, or are about to use it
	// cohort has the callers that may get the hold by hand-off; nil: none. After the release, the
	// cohort may serve other terms: check cohort.hold == h.
	cohort *cohort
	// signed is the metadata of the hold's user, or of the first of several readers, signed: with
	// the holder's traceparent in front (store.Sign); nothing is authenticated.
	signed string

	renewal renewal // guarded by the keeper's mutex
}

// holdWithLease is a hold together with its first Lease, in one allocation. Most holds have only
// one Lease.
type holdWithLease struct {
	hold  hold
	lease Lease
}

// handleLoss cleans up after a hold that has ended without a release, for the given reason. The
// parameter users has the Leases that used the hold; during a hand-off there are none. If mayBeOurs
// is true, the server may still keep the lease.
func (h *hold) handleLoss(users []*Lease, reason error, mayBeOurs bool) {
	begun := 0
	for _, l := range users {
		l.lose(reason) // no effect if a look at the context has ended l already
		if l.state.endError() == ErrReleased {
			begun++
		}
	}
	if begun > 0 && begun == len(users) {
		return // a Release has begun, and cleans up
	}
	h.engine.post.forget(h)
	if mayBeOurs || h.unclear || h.claim.Queue { // an unconfirmed hold still has its entry in the queue
		release, _ := h.engine.keeper.retire(h)
		h.engine.undo(release)
	}
	h.engine.cohorts.dropHold(h)
}

// releaseUnused releases in the background a hold that no Lease uses.
func (h *hold) releaseUnused() {
	release, _ := h.engine.keeper.retire(h)
	h.engine.post.forget(h)
	h.engine.undo(release)
}
