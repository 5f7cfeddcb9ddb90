package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// A WaitObserver is an Observer that is also notified when an acquire begins to wait.
type WaitObserver interface {
	Observer
	// Waiting is called at most once for each acquire, when the acquire begins to wait for another
	// holder. ctx is what Begin returned for the acquire. The function that Waiting returns may
	// be nil. Otherwise it is called once, before the acquire ends.
	Waiting(ctx context.Context, rule Rule, e WaitEvent) (over func())
}

// WaitEvent has what an acquire knows when it begins to wait.
type WaitEvent struct {
	// Place is the place in the server's queue: 1 is the head. Place is 0 without a queue, and for
	// an acquire that waits behind other callers of this process.
	Place int
	// Met is the holder. Met is zero if the holder is not known.
	Met Peer
}

// A RenewalObserver is an Observer that is also notified of renewals.
type RenewalObserver interface {
	Observer
	// Renewed is called with the answer to each renewal, on a goroutine of its own. ctx is the
	// context of the lease's first user, with the additions of Begin for the hold. This context may
	// have ended.
	Renewed(ctx context.Context, rule Rule, e RenewalEvent)
}

// RenewalEvent is the answer to one renewal.
type RenewalEvent struct {
	// Margin is how much of the lease was left when the answer came. A small Margin means that the
	// lease was nearly lost.
	Margin time.Duration
	// TTL is the requested TTL of the renewal.
	TTL time.Duration
	// Err is nil when the server confirmed the renewal. If Err is ErrLost, the lease is lost. After
	// any other error, the lease is still held, and the renewal is repeated.
	Err error
}

// A HolderTracer is an Observer that helps a waiter to find the span of the holder. The result of
// Traceparent is stored with the lease on the server, where every reader of the server's keys can
// see it. Waiters receive it as Outcome.Met.
type HolderTracer interface {
	Observer
	// Traceparent returns the span in ctx, in the format of the header traceparent of W3C's Trace
	// Context. It returns "" when waiters should not see the span. ctx is what Begin returned for
	// the acquire.
	Traceparent(ctx context.Context) string
}

// sign adds to metadata the traceparent of ctx, if the Observer has one.
func (c *config) sign(ctx context.Context, metadata string) string {
	if t, ok := c.observer.(HolderTracer); ok {
		return store.Sign(traceparent(ctx, t), metadata)
	}
	return metadata
}

func traceparent(ctx context.Context, t HolderTracer) string {
	defer absorb("Traceparent")
	return t.Traceparent(ctx)
}

// unsigned returns metadata without a traceparent.
func unsigned(signed string) string {
	_, metadata := store.Signature(signed)
	return metadata
}

// peer makes a Peer from a holder's fence and signed metadata.
func peer(fence uint64, signed string) Peer {
	trace, _ := store.Signature(signed)
	return Peer{Fence: fence, Traceparent: trace}
}

// sighting is what an acquire reports to the Observer about the other holders that it has seen.
type sighting struct {
	met, freed Peer
	heard      store.Event // the grant by message that an acquire must confirm
	handoff    Handoff
	streak     int
	over       func() // ends the wait
	waits      bool
}

// look returns the sighting of the acquire, or nil without an Observer.
func (a *acquisition) look() *sighting {
	if a.engine.cfg.observer == nil {
		return nil
	}
	if a.sighting == nil {
		a.sighting = new(sighting)
	}
	return a.sighting
}

// meets is called with the holder for which the acquire waits. Only the first such holder is
// recorded.
func (a *acquisition) meets(p Peer) {
	if s := a.look(); s != nil && s.met == (Peer{}) {
		s.met = p
	}
}

// waits is called when the acquire begins to wait, and notifies the Observer.
func (a *acquisition) waits(place int) {
	s := a.look()
	if s == nil || s.waits {
		return
	}
	s.waits = true
	if o, ok := a.engine.cfg.observer.(WaitObserver); ok {
		defer absorb("Waiting")
		s.over = o.Waiting(a.ctx, a.rule, WaitEvent{Place: place, Met: s.met})
	}
}

// handedBy records the hand-off by which the acquire gets the lock.
func (a *acquisition) handedBy(p Peer, how Handoff, streak int) {
	if s := a.look(); s != nil {
		s.freed, s.handoff, s.streak = p, how, streak
		a.meets(p)
	}
}

// hears is called with a grant that came by message, and records it. The grant is not in use yet,
// because an acquire must confirm it.
func (a *acquisition) hears(e store.Event) {
	if s := a.look(); s != nil {
		s.heard = e
	}
}

// confirmed is called when an answer has granted the lease with this fence. If a message about the
// grant came before the answer, confirmed records the hand-off, because only the message names the
// caller that released the key. If no message came, the acquire reached the server just after the
// release, and confirmed records nothing.
func (a *acquisition) confirmed(fence uint64) {
	s := a.sighting
	if s == nil {
		return // the acquire met no holder
	}
	if e, ok := a.engine.post.granted(&a.box); ok {
		s.heard = e
	}
	if fence != 0 && s.heard.Fence == fence && s.handoff == "" {
		a.handedBy(Peer{Traceparent: s.heard.ReleasedBy}, HandoffRemote, 0)
	}
}

// waited ends the wait, if the acquire has waited.
func (a *acquisition) waited() {
	if s := a.sighting; s != nil && s.over != nil {
		over := s.over
		s.over = nil
		defer absorb("the function that Waiting returned")
		over()
	}
}

// add copies the sighting into the Outcome.
func (s *sighting) add(o *Outcome) {
	if s != nil {
		o.Met, o.ReleasedBy, o.Handoff, o.Streak = s.met, s.freed, s.handoff, s.streak
	}
}

// These errors are the reasons for which a lease is lost without a revocation.
var (
	errTaken     = fmt.Errorf("%w: the server names another holder, or none", ErrLost)
	errUnrenewed = fmt.Errorf("%w: no renewal succeeded before the lease ran out", ErrLost)
	errPaused    = fmt.Errorf("%w: it was not renewed in time, because this process was paused or the server did not answer", ErrLost)
)

// causeOf returns the LossCause of an error.
func causeOf(err error) LossCause {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrRevoked):
		return LossRevoked
	case errors.Is(err, errUnrenewed):
		return LossUnrenewed
	case errors.Is(err, errPaused):
		return LossPaused
	case errors.Is(err, ErrLost):
		return LossTaken
	case errors.Is(err, ErrExpired):
		return LossExpired
	}
	return ""
}
