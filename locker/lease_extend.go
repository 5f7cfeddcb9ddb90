package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// Extend makes the lease last at least ttl from now, and renewals renew it by ttl from now on. To less than is left, it
// only shortens this side's view: the server is not asked. AtMost still bounds it. ctx ends the attempt, not the lease.
//
// Errors: ErrReleased, ErrLost, ErrRevoked, ErrExpired, ErrClosed; ErrInvalidRule for a ttl below 1 ms or above WithMaxTTL;
// ErrUnavailable when the server refuses for good; ctx.Err(). After the last two the lease is as it was.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	ctx, end := l.config().observe(ctx, OpExtend, l.rule)
	calls := 0
	err := l.extend(ctx, ttl, &calls)
	if over := l.ended(); endedEarly(over) {
		l.tell(over) // before this operation ends: whoever hears of the loss finds it observed
	}
	if err != nil {
		err = l.wrap(OpExtend, err)
	}
	if end != nil {
		end(Outcome{Result: resultOf(OpExtend, err), Err: err, Fence: l.fence, Calls: calls})
	}
	return err
}

func (l *Lease) extend(ctx context.Context, ttl time.Duration, attempts *int) error {
	e := l.engine
	if ttl < time.Millisecond || ttl > longestTime {
		return fmt.Errorf("%w: Extend by %v; from 1ms to 10 years are allowed", ErrInvalidRule, ttl)
	}
	if e.cfg.maxTTL != 0 && ttl > e.cfg.maxTTL {
		return fmt.Errorf("%w: Extend by %v, this Locker's WithMaxTTL allows %v", ErrInvalidRule, ttl, e.cfg.maxTTL)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.gone(); err != nil {
		return err
	}
	if l.shorten(ttl) {
		return nil
	}
	over := l.Context().Done()
	for pause := range calls.BetweenRepeats {
		claim, start, ok := e.keeper.extension(l.root(), ttl)
		if !ok { // a Release has come in between
			<-over
			return l.gone()
		}
		*attempts++
		select {
		case r := <-calls.Ask(&e.calls, func() ([]store.Grant, error) { return e.store.Renew(ctx, []store.Claim{claim}) }):
			var no *store.Refusal
			switch {
			case r.Err == nil && len(r.Value) == 1 && r.Value[0].Err == nil:
				if e.keeper.answered(l.hold, r.Value[0], claim, start) {
					e.keeper.extended(l.hold, ttl)
					return l.gone()
				}
				<-over // at once: the keeper has just found that its time is over
				return l.gone()
			case errors.As(r.Err, &no) && !no.Temporary:
				return unavailable(r.Err)
			}
		case <-over:
			return l.gone()
		case <-ctx.Done():
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
