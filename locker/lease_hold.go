package locker

import (
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// hold is what the server knows as one lease: one token, from its grant to its release or loss.
// Mostly one [Lease] uses it. A streak hands it over from Lease to Lease, each with a fence of its
// own out of the block.
type hold struct {
	engine  *Engine
	claim   store.Claim // the claim that was granted
	fence   uint64      // the first of the block
	block   int32
	ttl     time.Duration // the TTL that was asked for
	since   time.Time     // not later than the grant: deadlines count from here
	taken   instant       // when this process received the grant: the streak counts from here
	keep    instant       // until when Rule.AtLeast keeps the key, counted from when this process received the grant; 0: not at all
	unclear bool          // an acquire of token is unanswered, so the release must undo it
	posted  bool          // a message about token may still come

	contended bool // its acquire had to wait

	// Guarded by the cohorts' mutex:
	cohort *cohort // its callers may get the hold by hand-off; nil: none
	signed string  // the signed metadata of its user; of readers, the first one's
	used   int32   // fences of the block that were given out
	users  int32   // Shared: Leases that use it, or are about to
	closed bool    // Shared: no further Lease may use it
	over   bool    // the hold is being released, or was lost

	renewal // guarded by the keeper's mutex
}

// first is a hold together with the Lease that uses it first, which is mostly the only one.
type first struct {
	hold  hold
	lease Lease
}

// lost cleans up after a hold that has ended without a release. users are the Leases that used it,
// none during a hand-off.
func (h *hold) lost(users []*Lease, why error, mayBeOurs bool) {
	begun := 0
	for _, l := range users {
		if !l.lose(why) {
			begun++
		}
	}
	if begun > 0 && begun == len(users) {
		return // a Release has begun, and does the rest
	}
	h.engine.post.forget(h)
	if mayBeOurs || h.unclear || h.claim.Queue { // a hold that is not confirmed yet still has its entry in the queue
		_, longest := h.engine.keeper.remove(h)
		h.engine.steps.Undo(h.chore(longest))
	}
	h.engine.cohorts.lost(h)
}

// chore is the release of this hold, in the form that the cleaner needs.
func (h *hold) chore(longest time.Duration) calls.Chore {
	ch := calls.Chore{Claim: h.engine.keeper.claimOf(h)}
	ch.Claim.TombstoneTTL = calls.UndoFor(h.unclear, h.ttl)
	lives := max(longest, ch.Claim.TombstoneTTL)
	if ch.Claim.Queue { // a node of a quorum that has not granted the lease may have the token in its queue
		lives = max(lives, calls.QueueLife)
	}
	ch.Useless = time.Now().Add(lives)
	ch.Keep = h.engine.keeper.keepOf(h)
	return ch
}

// keepOf is until when the key stays locked after the release.
func (k *keeper) keepOf(h *hold) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.keep == 0 {
		return time.Time{}
	}
	return h.keep.time()
}

// keepNothing makes the release free the key at once, because no work was done under the lease. If
// other parts use the lease, it changes nothing.
func (l *Lease) keepNothing() {
	if l.part != nil && !l.part.family.isLast() {
		return
	}
	k := &l.engine.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	l.hold.keep = 0
}

// holder is what a caller that waits for this hold learns about it.
func (h *hold) holder() store.Holder {
	return store.Holder{Fence: h.fence, Left: time.Until(h.engine.keeper.deadlineOf(h)), Metadata: h.claim.Metadata}
}

// timeout is why a hold is over whose deadline has passed. The keeper's mutex is held.
func (h *hold) timeout() error {
	switch {
	case h.final:
		return ErrExpired
	case h.failure != nil:
		return fmt.Errorf("%w: %w", errUnrenewed, h.failure)
	}
	return errPaused
}

// releaseUnused releases, in the background, a hold that no caller will use.
func (h *hold) releaseUnused() {
	_, longest := h.engine.keeper.remove(h)
	h.engine.post.forget(h)
	h.engine.steps.Undo(h.chore(longest))
}
