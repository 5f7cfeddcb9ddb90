package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// Downgrade makes an Exclusive lease Shared, in one step, without letting another writer in between: readers who wait enter, and
// the lease goes on with its fence, which is theirs too. Call it when the writing is done: whatever it returns but
// ErrUnsupported, readers may have been let in. Of a Shared lease it is nil, and nothing is sent. Back there is no way: release,
// and acquire again. ctx ends the attempt, not the lease; the step may still happen then. Call it again, or release.
//
// Errors: ErrUnsupported when the Locker has no readers, or when a Locker of [NewReentrant] has let the holder in again; ErrReleased, ErrLost, ErrRevoked, ErrExpired, ErrClosed;
// ErrUnavailable when the server refuses for good; ctx.Err().
func (l *Lease) Downgrade(ctx context.Context) error {
	ctx, end := l.config().observe(ctx, OpDowngrade, l.rule)
	calls := 0
	err := l.downgrade(ctx, &calls)
	if over := l.ended(); endedEarly(over) {
		l.tell(over) // before this operation ends: whoever hears of the loss finds it observed
	}
	if err != nil {
		err = l.wrap(OpDowngrade, err)
	}
	if end != nil {
		end(Outcome{Result: resultOf(OpDowngrade, err), Err: err, Fence: l.fence, Calls: calls})
	}
	return err
}

func (l *Lease) downgrade(ctx context.Context, attempts *int) error {
	e := l.engine
	if e.readers == nil {
		return fmt.Errorf("%w: Downgrade needs a Locker with readers, such as NewReadWrite makes", ErrUnsupported)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.gone(); err != nil {
		return err
	}
	if l.isDowngraded() {
		return nil
	}
	if l.part != nil && !l.part.family.beginDowngrade() {
		return fmt.Errorf("%w: there are other holds of the same lease, which count on its being Exclusive; downgrade when they are released", ErrUnsupported)
	}
	over := l.Context().Done()
	for pause := range calls.BetweenRepeats {
		claim, start, ok := e.keeper.downgrading(l.root(), e.post.inbox(l.hold.claim.Key))
		if !ok { // a Release has come in between
			<-over
			return l.gone()
		}
		*attempts++
		select {
		case r := <-calls.Ask(&e.calls, func() (store.Grant, error) { return e.readers.Downgrade(ctx, claim) }):
			var no *store.Refusal
			switch {
			case r.Err == nil:
				if !e.keeper.answered(l.hold, r.Value, claim, start) {
					<-over // at once: the keeper has just found that its time is over
					return l.gone()
				}
				l.becomeShared()
				e.keeper.downgraded(l.hold, start)
				e.cohorts.downgraded(l.hold)
				return l.gone()
			case !errors.As(r.Err, &no):
				l.becomeShared()
			case !no.Temporary:
				return unavailable(r.Err)
			}
		case <-over:
			return l.gone()
		case <-ctx.Done():
			l.becomeShared()
			return ctx.Err()
		}
		select {
		case <-time.After(pause):
		case <-over:
			return l.gone()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil // BetweenRepeats has no end
}

// isDowngraded says whether the server has confirmed that the lease is Shared.
func (l *Lease) isDowngraded() bool {
	return l.rule.Mode == Shared || l.engine.keeper.claimOf(l.hold).Mode == Shared
}

// becomeShared makes Mode say what the lease is good for from now on.
func (l *Lease) becomeShared() {
	if l.part != nil {
		l.part.family.root.becomeShared()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mode = Shared
}

// downgrading returns what a downgrade of l asks for now, and the time from which its success counts. From then on the hold may
// be a reader's on the server, with an entry that names inbox, and it is not passed on. It is false when it was passed on already.
func (k *keeper) downgrading(l *Lease, inbox string) (store.Claim, time.Time, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, now := l.hold, time.Now()
	if !h.usedBy(l) || h.index == 0 {
		return store.Claim{}, now, false
	}
	if c := &h.claim; c.Fence == 0 {
		if c.Fence = l.fence; !c.Queue { // an entry in the queue names its inbox, too
			c.Inbox = inbox
		}
	}
	c := h.renewalAt(now, h.next(now))
	c.Mode = Shared
	return c, now, true
}

// downgraded makes h a reader's, by a call that was sent at start.
func (k *keeper) downgraded(h *hold, start time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.claim.Mode = Shared
	k.plan(h, start, h.each)
	k.fix(h)
}
