package exclusive

import "context"

// WithCancelCause does the work of context.WithCancelCause, and each look at the new context looks
// at the lease's context first, as a look at the context of locker.Run does. After a pause of the
// process, a context without this look would be over a little later: only when another goroutine
// has run. context.Cause looks by calling Value.
//
// The caller ends the context when the lease's context ends, for those who wait for Done.
func WithCancelCause(parent, lease context.Context) (context.Context, context.CancelCauseFunc) {
	own, cancel := context.WithCancelCause(parent)
	return &checked{own, lease, cancel}, cancel
}

type checked struct {
	context.Context
	lease  context.Context
	cancel context.CancelCauseFunc
}

// look leaves the end at a deadline to the contexts below c: such an end is DeadlineExceeded.
func (c *checked) look() {
	if c.lease.Err() == context.Canceled {
		c.cancel(context.Cause(c.lease))
	}
}

func (c *checked) Err() error {
	c.look()
	return c.Context.Err()
}

func (c *checked) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c *checked) Value(key any) any {
	c.look()
	return c.Context.Value(key)
}
