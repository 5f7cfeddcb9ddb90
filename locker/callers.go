package locker

import "context"

// callers make calls to the Store.
type callers struct{ engine *Engine }

// call is one call under way.
type call struct {
	heard chan struct{}
	grant Grant
	err   error
}

func (c *callers) acquire(ctx context.Context, claim Claim) question {
	return c.start(func() (Grant, error) { return c.engine.store.Acquire(ctx, claim) })
}

func (c *callers) release(ctx context.Context, claim Claim) question {
	return c.start(func() (Grant, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return c.engine.store.Release(ctx, claim)
	})
}

func (c *callers) start(do func() (Grant, error)) question {
	q := &call{heard: make(chan struct{})}
	c.engine.calls.enter()
	go func() {
		defer c.engine.calls.leave()
		q.grant, q.err = do()
		close(q.heard)
	}()
	return q
}

func (q *call) done() <-chan struct{}  { return q.heard }
func (q *call) answer() (Grant, error) { return q.grant, q.err }
func (q *call) abandon()               {}
