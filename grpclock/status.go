package grpclock

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/latchkit/latchkit/internal/fenced"
	"github.com/latchkit/latchkit/locker"
)

// Status returns the answer to a call whose handler got err from a lock, or from a transaction under
// a lock. The answer is a [*Problem], with the codes, reasons and times for a retry that the
// interceptors use. Status also sets the trailer by which gRPC's own clients decide whether to
// retry. If err is nil or is no error of a lock, Status returns err itself. So a handler can end
// with
//
//	return receipt, grpclock.Status(ctx, err)
//
// These are the answers, beside those to a lock that the handler wanted and did not get:
//
//	sqllock.ErrStaleFence               ABORTED LOCK_LOST, retry: nothing was changed
//	sqllock.ErrTooLate, ErrIdle         ABORTED LOCK_LOST, retry: nothing was changed
//	locker.ErrLost, ErrExpired          ABORTED LOCK_LOST: it may or may not be completed
//	locker.ErrClosed                    UNAVAILABLE LOCK_CLOSED: it may or may not be completed
//	locker.ErrUnavailable of a release  UNAVAILABLE LOCK_UNAVAILABLE: perhaps not recorded
//	locker.ErrDone                      ALREADY_EXISTS ALREADY_DONE
//
// If err is context.Canceled because the lock was lost, the loss counts. ctx is the handler's
// context. The interceptors of this package send such an answer as it is, also after a loss.
func Status(ctx context.Context, err error) error {
	why := err
	if errors.Is(err, context.Canceled) {
		why = errors.Join(err, context.Cause(ctx))
	}
	var p *Problem
	_, ofLocker := errors.AsType[*locker.Error](why)
	if with, ok := fromHandler(why); ok {
		p = with.problem(nil, why)
	} else if ofLocker || slices.ContainsFunc(replies, func(with reply) bool { return errors.Is(why, with.is) }) {
		p = problem(ctx, nil, why)
	} else {
		return err
	}
	p.Method, _ = grpc.Method(ctx)
	return p.send(ctx)
}

// fromHandler returns the reply to an error that a handler got after its work had begun. It returns
// false if a lock was refused.
func fromHandler(err error) (with reply, ok bool) {
	e, _ := errors.AsType[*locker.Error](err)
	refused := e != nil && e.Op == locker.OpAcquire
	switch {
	case errors.Is(err, fenced.ErrStale):
		return overruled, true
	case errors.Is(err, fenced.ErrTooLate), errors.Is(err, fenced.ErrIdle):
		return late, true
	case endedEarly(err) && (!refused || !endedEarly(e)):
		return overtaken, true
	case !refused && errors.Is(err, locker.ErrClosed):
		return closing, true
	case !refused && errors.Is(err, locker.ErrUnavailable):
		return unrecorded, true
	}
	return reply{}, false
}

// overruled and late are the replies to a call whose transaction was rolled back, and unrecorded is
// the reply to a call whose work may not be marked as done.
var (
	overruled = reply{code: codes.Aborted, reason: ReasonLost, retry: true,
		message: "another call has taken over; nothing was changed"}
	late = reply{code: codes.Aborted, reason: ReasonLost, retry: true,
		message: "the work took too long for its lock; nothing was changed"}
	unrecorded = reply{code: codes.Unavailable, reason: ReasonUnavailable,
		message: "the call was handled; it is unknown whether the lock server has recorded this"}
)
