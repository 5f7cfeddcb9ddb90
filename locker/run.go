package locker

import (
	"context"
	"errors"
)

// Run takes the lock that rule describes, calls fn, and gives the lock up again, also when fn panics. fn's context ends
// with ctx or with the lease, whichever is first, and context.Cause says which; [FromContext] finds the lease in it.
// The release does not depend on ctx.
//
// When the lock was not taken, the error is Acquire's and fn was not called. When the lease ended while fn ran, the
// error is ErrLost, ErrRevoked or ErrExpired even if fn returned nil, with fn's error beside it if there was one.
// Otherwise fn's error comes back unchanged. A release that stayed without an answer is not an error of the work: it
// goes on in the background. Only with Rule.Once it is ErrUnavailable, because then nobody knows that the work is done.
func Run(ctx context.Context, l Locker, rule Rule, fn func(ctx context.Context) error) error {
	lease, err := l.Acquire(ctx, rule)
	if err != nil {
		return err
	}
	runs := &lease.engine.runs
	if !runs.Enter() { // Close came between the grant and here
		_ = lease.Release(ctx)
		return &Error{Op: OpAcquire, Key: rule.Key, Err: ErrClosed}
	}
	defer runs.Leave()
	returned := false
	defer func() {
		if !returned { // fn panicked or called runtime.Goexit; both go on after the release
			_ = lease.Release(ctx)
		}
	}()
	err = fn(lease.bound())
	returned = true
	return settle(ctx, lease, err)
}

// settle releases the lease after fn returned err, and says what became of both.
func settle(ctx context.Context, lease *Lease, err error) error {
	if err != nil {
		if lost := lease.Release(ctx); endedEarly(lost) {
			return errors.Join(err, lost)
		}
		return err
	}
	released := lease.Complete(ctx)
	if endedEarly(released) || lease.rule.Once > 0 {
		return released
	}
	return nil
}

func endedEarly(err error) bool {
	return errors.Is(err, ErrLost) || errors.Is(err, ErrExpired)
}

// A Guard turns a request into a Rule and runs a function under its lock. It is what the adapters are made of. Its zero
// value is not usable: both fields must be set.
type Guard[T any] struct {
	Locker Locker
	// Rule derives what to guard from a request. Its error is returned as it is, and nothing is run.
	Rule func(ctx context.Context, in T) (Rule, error)
}

// Run calls fn under the lock for in, as [Run] does.
func (g Guard[T]) Run(ctx context.Context, in T, fn func(ctx context.Context) error) error {
	rule, err := g.Rule(ctx, in)
	if err != nil {
		return err
	}
	return Run(ctx, g.Locker, rule, fn)
}
