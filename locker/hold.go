package locker

import (
	"maps"
	"slices"
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

// renewal is the part of a hold that its keeper's mutex guards.
type renewal struct {
	lease      *Lease          // the user of the hold, or the first of several; nil during a hand-off, and before the first use
	sharers    map[*Lease]bool // the other users
	renewTTL   time.Duration   // the TTL that a renewal asks for
	longest    time.Duration   // the longest TTL of all renewals, after which the server has forgotten the lease
	atMostEnd  instant         // the time at which EndAfter is over; 0: there is no EndAfter
	deadline   atomicInstant   // the local, conservative time at which the hold is over
	handoffTTL time.Duration   // > 0: granted by message for this long; the first renewal confirms it
	renewAt    instant         // when the next renewal is due, if one will be sent
	firstDue   instant         // for a repeated renewal: when it was first due
	failure    error           // the error of the last renewal attempt
	slot       int64           // the number of the hold's slot in the schedule
	index      int32           // the place in that slot or in the heap, from 1; 0: not in the schedule
	unanswered int8            // the number of renewals under way
	final      bool            // the hold is not renewed any more
	doubtful   bool            // since a suspension, no renewal was answered
	adaptive   bool            // the Engine chooses the TTL in the field renewTTL
}

// addUser adds l to the Leases that use the hold.
func (r *renewal) addUser(l *Lease) {
	switch {
	case r.lease == nil:
		r.lease = l
	case r.sharers == nil:
		r.sharers = map[*Lease]bool{l: true}
	default:
		r.sharers[l] = true
	}
}

// isUsedBy reports whether l is one of the Leases that use the hold.
func (r *renewal) isUsedBy(l *Lease) bool { return r.lease == l || r.sharers[l] }

// leases returns all Leases that use the hold.
func (r *renewal) leases() []*Lease {
	var all []*Lease
	if r.lease != nil {
		all = append(all, r.lease)
	}
	return slices.AppendSeq(all, maps.Keys(r.sharers))
}

// lookTime returns the time at which the keeper must look at the hold.
func (r *renewal) lookTime() instant {
	if !r.final || r.handoffTTL > 0 {
		return min(r.renewAt, r.deadline.load())
	}
	return r.deadline.load()
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
