package otellock

import (
	"context"
	"errors"

	"github.com/latchkit/latchkit/locker"
)

// kinds has a name for each kind of error that does not name itself. An error can be of several
// kinds, and the first of these kinds in the list counts. The list puts the end of a lease before
// the reason why its renewals failed, and the end of the caller's context before busy. It puts
// revoked before lost, because a revoked lease is also lost.
var kinds = [...]struct {
	sentinel error
	name     string
}{
	{locker.ErrRevoked, "revoked"},
	{locker.ErrLost, "lost"},
	{locker.ErrExpired, "expired"},
	{locker.ErrReleased, "released"},
	{locker.ErrClosed, "closed"},
	{locker.ErrDone, "done"},
	{locker.ErrTooManyWaiters, "too_many_waiters"},
	{locker.ErrGone, "gone"},
	{locker.ErrInvalidKey, "invalid_key"},
	{locker.ErrInvalidRule, "invalid_rule"},
	{locker.ErrSelfDeadlock, "self_deadlock"}, // before unsupported, because an ErrSelfDeadlock is also ErrUnsupported
	{locker.ErrUnsupported, "unsupported"},
	{locker.ErrUnguarded, "unguarded"},
	{context.Canceled, "canceled"},
	{locker.ErrQuorum, "quorum"}, // before unavailable, because an ErrQuorum is also ErrUnavailable
	{locker.ErrUnavailable, "unavailable"},
	{context.DeadlineExceeded, "deadline_exceeded"},
	{locker.ErrBusy, "busy"},
}

// typed is an error that names its own type, as errors of adapters do. This name comes first: such
// an error also wraps its reasons, and a COMMIT without an answer wraps a deadline. If the error
// does not know its type, the name is other. OpenTelemetry's instrumentations call the same method.
type typed interface {
	error
	ErrorType() string
}

// errorType returns the error.type of an outcome. It returns "" for an outcome that is no error: a
// success, or a refusal that the Rule asked for with NoWait or OnceFor.
func errorType(out locker.Outcome) string {
	if out.Err == nil || out.Result == locker.ResultBusy || out.Result == locker.ResultDone {
		return ""
	}
	if e, ok := errors.AsType[typed](out.Err); ok && e.ErrorType() != other {
		return e.ErrorType()
	}
	for _, k := range kinds {
		if errors.Is(out.Err, k.sentinel) {
			return k.name
		}
	}
	return other
}
