package calls

import (
	"context"
	"time"
)

// until is a context with a deadline but without a timer. The context is for calls that the Engine
// abandons by itself: Go's sockets and go-redis read the deadline. A context of type until costs a
// quarter of context.WithTimeout. For the client, context.WithTimeout would cost more than the rest
// of a release.
type until struct {
	context.Context // a context that never ends
	deadline        time.Time
}

// Until returns ctx with the given deadline.
func Until(ctx context.Context, deadline time.Time) context.Context {
	return until{ctx, deadline}
}

// Deadline returns the time after which no answer is useful.
func (u until) Deadline() (deadline time.Time, ok bool) { return u.deadline, true }

// UndoFor returns how long a tombstone must exist. When every acquire of the token was answered,
// no tombstone is needed, and the time is 0. Otherwise the tombstone exists for longer than a late
// acquire can have an effect.
func UndoFor(unclear bool, lease time.Duration) time.Duration {
	if !unclear {
		return 0
	}
	return max(lease, time.Minute)
}

// QueueLife is how long the removal of an entry from a server's queue is repeated. After that time
// the entry is gone, or its token was granted the key. In the second case, the grant is released.
const QueueLife = 10 * time.Second

const Timeout = 5 * time.Second // the time-out of calls in the background
