package idempotency

import (
	"context"
	"sync/atomic"

	"github.com/latchkit/latchkit/locker"
)

// An Attempt is one run of a request's work. [FromContext] finds the Attempt in the context of
// the work.
type Attempt struct {
	lease            *locker.Lease
	interruptedFence uint64
	wasInterrupted   bool
	discarded        atomic.Bool
}

type attemptKey struct{}

// FromContext returns the innermost Attempt of ctx.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(*Attempt)
	return a, ok
}

// Lease returns the lease on the request's key. If the work has taken a further lock,
// locker.FromContext returns the lease of that lock instead.
func (a *Attempt) Lease() *locker.Lease { return a.lease }

// Interrupted reports whether an earlier run of the same request began and stored no answer,
// because its process died or lost the lock. The earlier run may have done a part of the work.
// fence is the fence of the earlier run. If the Locker makes no fences, fence is 0.
func (a *Attempt) Interrupted() (fence uint64, interrupted bool) {
	return a.interruptedFence, a.wasInterrupted
}

// Discard prevents the Keeper from storing the answer of this run. Use Discard, for example, when
// the request was refused before any work began. The next request with the same key runs again.
func (a *Attempt) Discard() { a.discarded.Store(true) }
