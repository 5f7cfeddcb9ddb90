package idempotency

import (
	"context"
	"sync/atomic"

	"github.com/latchkit/latchkit/locker"
)

// An Attempt is one run of a request's work. [FromContext] finds it in the context of the work.
type Attempt struct {
	lease       *locker.Lease
	interrupted uint64
	again       bool
	discarded   atomic.Bool
}

type attemptKey struct{}

// FromContext returns the innermost Attempt that ctx was derived from.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(*Attempt)
	return a, ok
}

// Lease returns the lease on the request's key. The lease of another lock inside is what
// locker.FromContext returns.
func (a *Attempt) Lease() *locker.Lease { return a.lease }

// Interrupted reports whether an earlier run of the same request began and left no answer: its
// process died, or lost the lock. The work of that run may be done in part. fence is the fence of
// that run, 0 where the Locker cannot mint fences.
func (a *Attempt) Interrupted() (fence uint64, interrupted bool) { return a.interrupted, a.again }

// Discard makes the answer of this run not to be stored, for example because the request was
// refused before any work began. The next request with the same key runs again.
func (a *Attempt) Discard() { a.discarded.Store(true) }
