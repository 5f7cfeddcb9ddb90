package locker

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/internal/store"
)

// sighting is what an acquire reports to the Observer about the other holders that it has seen.
type sighting struct {
	met, freed Peer
	message    store.Event // the grant by message that an acquire must confirm
	handoff    Handoff
	streak     int
	end        func() // ends the wait
	waiting    bool
}

// ensureSighting returns the sighting of the acquire, and makes it if there is none. If there
// is no Observer, ensureSighting returns nil.
func (w *waiter) ensureSighting() *sighting {
	if w.engine.cfg.observer == nil {
		return nil
	}
	if w.sighting == nil {
		w.sighting = new(sighting)
	}
	return w.sighting
}

// noteMet records p, the holder for which the acquire waits. Only the first such holder is
// recorded.
func (w *waiter) noteMet(p Peer) {
	if s := w.ensureSighting(); s != nil && s.met == (Peer{}) {
		s.met = p
	}
}

// noteWait is called when the acquire begins to wait at the given place in the queue, and notifies
// the Observer.
func (w *waiter) noteWait(place int) {
	s := w.ensureSighting()
	if s == nil || s.waiting {
		return
	}
	s.waiting = true
	if o, ok := w.engine.cfg.observer.(WaitObserver); ok {
		defer absorb("Waiting")
		s.end = o.Waiting(w.observed, w.rule, WaitEvent{Place: place, Met: s.met})
	}
}

// noteHandoff records the hand-off by which the acquire gets the lock: the holder p that released
// it, the kind of the hand-off, and its number in the streak.
func (w *waiter) noteHandoff(p Peer, kind Handoff, streak int) {
	if s := w.ensureSighting(); s != nil {
		s.freed, s.handoff, s.streak = p, kind, streak
		w.noteMet(p)
	}
}

// noteMessage records e, a grant that came by message. The grant is not in use yet, because an
// acquire must confirm it.
func (w *waiter) noteMessage(e store.Event) {
	if s := w.ensureSighting(); s != nil {
		s.message = e
	}
}

// confirmHandoff is called when an answer has granted the lease with this fence. If a message about
// the grant came before the answer, confirmHandoff records the hand-off, because only the message
// names the caller that released the key. If no message came, the acquire reached the server just
// after the release, and confirmHandoff records nothing.
func (w *waiter) confirmHandoff(fence uint64) {
	s := w.sighting
	if s == nil {
		return // the acquire met no holder
	}
	if e, ok := w.engine.post.grantIn(&w.place.box); ok {
		s.message = e
	}
	if fence != 0 && s.message.Fence == fence && s.handoff == "" {
		w.noteHandoff(Peer{Traceparent: s.message.ReleasedBy}, HandoffRemote, 0)
	}
}

// endWait ends the wait for the Observer, if the acquire has waited.
func (w *waiter) endWait() {
	if s := w.sighting; s != nil && s.end != nil {
		over := s.end
		s.end = nil
		defer absorb("the function that Waiting returned")
		over()
	}
}

// copyTo copies the sighting into the Outcome o.
func (s *sighting) copyTo(o *Outcome) {
	if s != nil {
		o.Met, o.ReleasedBy, o.Handoff, o.Streak = s.met, s.freed, s.handoff, s.streak
	}
}

// sign returns the metadata signed: with the holder's traceparent, which is the one of ctx, in
// front (store.Sign), if the Observer has one. Nothing is authenticated.
func (c *config) sign(ctx context.Context, metadata string) string {
	if t, ok := c.observer.(HolderTracer); ok {
		return store.Sign(traceparent(ctx, t), metadata)
	}
	return metadata
}

// traceparent returns the span that t finds in ctx, or "" if t panics.
func traceparent(ctx context.Context, t HolderTracer) string {
	defer absorb("Traceparent")
	return t.Traceparent(ctx)
}

// unsigned returns the metadata in signed, without a traceparent.
func unsigned(signed string) string {
	_, metadata := store.Signature(signed)
	return metadata
}

// peer returns a Peer of a holder with the given fence and signed metadata.
func peer(fence uint64, signed string) Peer {
	trace, _ := store.Signature(signed)
	return Peer{Fence: fence, Traceparent: trace}
}

// These errors are the reasons for which a lease is lost without a revocation.
var (
	errTaken     = fmt.Errorf("%w: the server names another holder, or none", ErrLost)
	errUnrenewed = fmt.Errorf("%w: no renewal succeeded before the lease ran out", ErrLost)
	errPaused    = fmt.Errorf("%w: it was not renewed in time, because this process was paused or the server did not answer", ErrLost)
)

// losses has the LossCause of each error with which a hold ends, the most precise first.
var losses = []word[LossCause]{
	{ErrRevoked, LossRevoked},
	{errUnrenewed, LossUnrenewed},
	{errPaused, LossPaused},
	{ErrLost, LossTaken},
	{ErrExpired, LossExpired},
}
