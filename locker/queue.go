package locker

import (
	"context"

	"github.com/latchkit/latchkit/locker/store"
)

// Waiter is an entry in the queue of a key.
type Waiter = store.Waiter

// Queue returns the waiters of key that the server knows now. The waiter whose turn comes next is
// the first. Callers of one process that wait for a key on equal terms usually share one entry.
// Several servers promise no order, and they keep no metadata of waiters.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Queue(ctx context.Context, key string) ([]Waiter, error) {
	s, ok := e.store.(store.Queuer)
	if !ok {
		return nil, &Error{Op: OpInspect, Key: key, Err: ErrUnsupported}
	}
	all, err := administer(ctx, e, OpInspect, key, func(l string) ([]Waiter, error) { return s.Queue(ctx, l) })
	for i := range all {
		all[i].Metadata = unsigned(all[i].Metadata)
	}
	return all, err
}
