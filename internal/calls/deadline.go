package calls

import (
	"context"
	"time"
)

// until is a context with a deadline but without a timer: for calls that the Engine abandons by
// itself. Go's sockets and go-redis read the deadline. until costs a quarter of
// context.WithTimeout, which would be the larger part of the cost of a release without a server.
type until struct {
	context.Context // never done
	deadline        time.Time
}

// Until is ctx with that deadline.
func Until(ctx context.Context, deadline time.Time) context.Context {
	return until{ctx, deadline}
}

// Deadline is the time after which no answer is of use.
func (u until) Deadline() (deadline time.Time, ok bool) { return u.deadline, true }

// UndoFor is how long a tombstone must exist: 0 when every acquire of the token was answered,
// otherwise longer than a late execution can have an effect.
func UndoFor(unclear bool, lease time.Duration) time.Duration {
	if !unclear {
		return 0
	}
	return max(lease, time.Minute)
}

// QueueLife is how long the removal of an entry from a server's queue is retried. After that the
// entry is gone, or was granted the key, and then the grant is released.
const QueueLife = 10 * time.Second

const Timeout = 5 * time.Second // of calls in the background
