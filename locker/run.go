package locker

import (
	"context"
	"errors"
)

// Run takes the lock that rule describes, calls fn, and releases the lock, also when fn panics. The
// context of fn ends with ctx or with the lease, whichever ends first. context.Cause says whether
// ctx or the lease has ended. [FromContext] finds the lease in the context of fn. The end of ctx
// does not prevent the release.
//
// When the lock was not taken, the error is the error of Acquire, and fn was not called. When
// the lease ended while fn ran, the error is ErrLost, ErrRevoked or ErrExpired even if fn
// returned nil. If fn also returned an error, the result contains both errors. If the lease did
// not end early, Run returns fn's error unchanged. Without Rule.Once, a release without an
// answer is no error, because it is repeated in the background. With Rule.Once, a release
// without an answer is ErrUnavailable, because then it is unknown whether the work is marked as
// done.
func Run(ctx context.Context, l Locker, rule Rule, fn func(ctx context.Context) error) error {
	lease, err := l.Acquire(ctx, rule)
	if err != nil {
		return err
	}
	runs := &lease.engine.runs
	if !runs.Enter() { // Close has begun since the grant
		_ = lease.Release(ctx)
		return &Error{Op: OpAcquire, Key: rule.Key, Err: ErrClosed}
	}
	defer runs.Leave()
	returned := false
	defer func() {
		if !returned { // fn panicked or called runtime.Goexit, which continues after the release
			_ = lease.Release(ctx)
		}
	}()
	err = fn(lease.derive(withLease(lease.base, lease)))
	returned = true
	return settle(ctx, lease, err)
}

// settle releases the lease after fn returned err, and returns the error of Run.
func settle(ctx context.Context, lease *Lease, err error) error {
	if err != nil {
		if lost := lease.release(ctx, false, true); endedEarly(lost) {
			return errors.Join(err, lost)
		}
		return err
	}
	released := lease.release(ctx, true, true)
	if endedEarly(released) || lease.rule.Once > 0 {
		return released
	}
	return nil
}

// endedEarly reports whether err means that a lease ended before its release.
func endedEarly(err error) bool {
	return errors.Is(err, ErrLost) || errors.Is(err, ErrExpired)
}
