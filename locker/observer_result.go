package locker

import (
	"context"
	"errors"
)

// resultOf returns the Result of op for its error err. resultOf cannot decide whether ErrBusy means
// a timeout: only the acquisition can, because it knows the rule.
func resultOf(op Op, err error) Result {
	switch {
	case err == nil:
		return successOf(op)
	// The errors for the end of a lease are checked first, because such an error may also contain
	// the error of a cancelled or failed call.
	case errors.Is(err, ErrRevoked): // before ErrLost, because a revocation is also a loss
		return ResultRevoked
	case errors.Is(err, ErrLost):
		return ResultLost
	case errors.Is(err, ErrExpired):
		return ResultExpired
	case errors.Is(err, ErrReleased):
		return ResultReleased
	case errors.Is(err, ErrDone):
		return ResultDone
	case errors.Is(err, ErrTooManyWaiters):
		return ResultTooManyWaiters
	case errors.Is(err, ErrGone):
		return ResultGone
	case errors.Is(err, context.Canceled):
		return ResultCanceled
	case errors.Is(err, ErrUnavailable):
		return ResultUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		return ResultTimeout
	case errors.Is(err, ErrBusy):
		return ResultBusy
	}
	return ResultError
}

// successOf returns the Result of op when it succeeds.
func successOf(op Op) Result {
	switch op {
	case OpAcquire:
		return ResultAcquired
	case OpExtend:
		return ResultExtended
	case OpDowngrade:
		return ResultDowngraded
	case OpRevoke:
		return ResultRevoked
	default:
		return ResultReleased
	}
}
