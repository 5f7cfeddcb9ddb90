package locker

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// Downgrade makes an Exclusive lease Shared in one step, so that no other writer gets the key in
// between. The lease keeps its fence. Waiting readers enter, and share this fence. Call Downgrade
// when the writing is done. Readers may have entered even if Downgrade returns an error. Only
// ErrUnsupported proves that no reader has entered. For a Shared lease, Downgrade returns nil and
// sends nothing. A downgrade cannot be undone. To write again, release the lease and acquire the
// key again. The end of ctx ends the call, not the lease. The server may still execute the
// downgrade after the end of the call. So when ctx has ended the call, call Downgrade again or
// release the lease.
//
// Errors: ErrUnsupported when the Locker has no readers, or when the lease has other holds in a
// Locker of [NewReentrant]; ErrReleased, ErrLost, ErrRevoked, ErrExpired, ErrClosed; ErrUnavailable
// when the server refuses for good; ctx.Err().
func (l *Lease) Downgrade(ctx context.Context) error {
	return l.change(ctx, OpDowngrade, l.downgrade)
}

// downgrade does the work of Downgrade, and stores the number of calls in calls.
func (l *Lease) downgrade(ctx context.Context, calls *int) error {
	if l.rule.Limit > 0 {
		return fmt.Errorf("%w: a permit of a semaphore has no readers; take another Weight instead", ErrUnsupported)
	}
	if l.engine.can.Downgrade == nil {
		return fmt.Errorf("%w: Downgrade needs a Locker with readers, such as one of NewReadWrite", ErrUnsupported)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.state.contextCause(); err != nil {
		return err
	}
	if l.isDowngraded() {
		return nil
	}
	if l.part != nil && !l.part.family.beginDowngrade() {
		return fmt.Errorf("%w: other holds of the same lease need it to be Exclusive; call Downgrade after their release", ErrUnsupported)
	}
	d := &downgrade{}
	d.repetition = repetition{step: d, lease: l, ctx: ctx}
	_, err := d.run()
	*calls = d.calls
	return err
}

// downgrade is the repeated step of Downgrade.
type downgrade struct {
	repetition

	claim  store.Claim // the claim of the last attempt
	sentAt time.Time
}

func (d *downgrade) begin() (q *calls.Future, ok bool) {
	e, h := d.lease.engine, d.lease.hold
	if d.claim, d.sentAt, ok = e.keeper.beginDowngrade(d.lease.root(), e.post.inbox(h.claim.Key)); !ok {
		return nil, false
	}
	ctx, claim := d.ctx, d.claim
	return e.calls.Begin(func() (store.Grant, error) { return e.can.Downgrade(ctx, claim) }, nil), true
}

func (d *downgrade) applyAnswer(g store.Grant) error {
	l, e := d.lease, d.lease.engine
	if !e.keeper.applyAnswer(l.hold, g, d.claim, d.sentAt) {
		<-l.Context().Done() // the keeper ends the Lease at once
		return l.state.contextCause()
	}
	l.becomeShared()
	e.keeper.applyDowngrade(l.hold, d.sentAt)
	e.cohorts.afterDowngrade(l.hold)
	return l.state.contextCause()
}

// noteFailure makes the Lease Shared if unclear is true, because readers may have entered.
func (d *downgrade) noteFailure(_ error, unclear bool) {
	if unclear {
		d.lease.becomeShared()
	}
}

// isDowngraded reports whether the server has confirmed that the lease is Shared.
func (l *Lease) isDowngraded() bool {
	return l.rule.Mode == Shared || l.engine.keeper.claimOf(l.hold).Mode == Shared
}

// becomeShared makes Mode return Shared from now on.
func (l *Lease) becomeShared() {
	if l.part != nil {
		l.part.family.root.becomeShared()
	}
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.mode = Shared
}

// beginDowngrade prepares a downgrade of l that is sent now, with the given inbox. It returns the
// claim, and the time from which the TTL counts if the downgrade succeeds. After this call, the
// server may have an entry that registers the hold as a reader, with its inbox. So the hold is not
// handed over any more. beginDowngrade returns false if the hold was handed over already.
func (k *keeper) beginDowngrade(l *Lease, inbox string) (store.Claim, time.Time, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, now := l.hold, time.Now()
	if !h.renewal.isUsedBy(l) || h.renewal.index == 0 {
		return store.Claim{}, now, false
	}
	if c := &h.claim; c.Fence == 0 {
		if c.Fence = l.fence; !c.Queue { // with Queue, the server has the inbox already
			c.Inbox = inbox
		}
	}
	c := h.renewalAt(now, h.nextTTL(now))
	c.Mode = Shared
	return c, now, true
}

// applyDowngrade makes h a hold of readers, because the server has confirmed a downgrade that was
// sent at start.
func (k *keeper) applyDowngrade(h *hold, start time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.claim.Mode = Shared
	due := h.renewal.renewAt
	if k.planRenewal(h, instantOf(start), h.renewal.renewTTL); h.renewal.doubtful {
		h.renewal.renewAt = due // the renewal that proves the hold after a suspension
	}
	k.reschedule(h)
}
