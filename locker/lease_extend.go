package locker

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// Extend makes the lease last at least ttl from now. Later renewals ask for ttl as well. If the
// lease has more than ttl left, Extend shortens it in this process only, without a call to the
// server. The lease still ends at EndAfter. The end of ctx ends the call, not the lease.
//
// Errors: ErrReleased, ErrLost, ErrRevoked, ErrExpired, ErrClosed; ErrInvalidRule for a ttl below
// 1 ms or above WithMaxTTL; ErrUnavailable when the server refuses for good; ctx.Err(). When Extend
// returns ErrUnavailable or ctx.Err(), the lease keeps its earlier TTL.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	return l.change(ctx, OpExtend, func(ctx context.Context, calls *int) error { return l.extend(ctx, ttl, calls) })
}

// extend does the work of Extend, and stores the number of calls in calls.
func (l *Lease) extend(ctx context.Context, ttl time.Duration, calls *int) error {
	e := l.engine
	if ttl < time.Millisecond || ttl > longestTime {
		return fmt.Errorf("%w: Extend by %v; give 1ms to 10 years", ErrInvalidRule, ttl)
	}
	if e.cfg.usable(ttl) <= 0 {
		return fmt.Errorf("%w: Extend by %v: such a short lease ends before its holder learns of it; give more", ErrInvalidRule, ttl)
	}
	if e.cfg.maxTTL != 0 && ttl > e.cfg.maxTTL {
		return fmt.Errorf("%w: Extend by %v, and this Locker's WithMaxTTL allows %v; shorten the time or raise WithMaxTTL", ErrInvalidRule, ttl, e.cfg.maxTTL)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.state.contextCause(); err != nil {
		return err
	}
	if l.shorten(ttl) {
		return nil
	}
	x := &extension{ttl: ttl}
	x.repetition = repetition{step: x, lease: l, ctx: ctx}
	_, err := x.run()
	*calls = x.calls
	return err
}

// extension is the step of Extend: a renewal by ttl.
type extension struct {
	repetition
	ttl time.Duration

	claim  store.Claim // the claim of the last attempt
	sentAt time.Time
}

func (x *extension) begin() (*calls.Future, bool) {
	e, ok := x.lease.engine, false
	if x.claim, x.sentAt, ok = e.keeper.beginExtension(x.lease.root(), x.ttl); !ok {
		return nil, false
	}
	f := new(calls.Future)
	e.steps.BeginRenew(x.ctx, []store.Claim{x.claim}, func(_ []int, grants []store.Grant) { f.Deliver(grants[0], grants[0].Err) })
	return f, true
}

func (x *extension) applyAnswer(g store.Grant) error {
	l := x.lease
	if l.engine.keeper.applyAnswer(l.hold, g, x.claim, x.sentAt) {
		l.engine.keeper.applyExtension(l.hold, x.ttl)
	} else {
		<-l.Context().Done() // the keeper ends the Lease at once
	}
	return l.state.contextCause()
}

func (*extension) noteFailure(error, bool) {}
