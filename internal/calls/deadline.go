package calls

import (
	"context"
	"time"
)

// deadlineContext is a context with a deadline but without a timer. The context is for calls that
// the Engine abandons by itself: Go's sockets and go-redis read the deadline. A deadlineContext
// costs a quarter of a context.WithTimeout, which would cost the client more than the rest of a
// release.
type deadlineContext struct {
	context.Context // a context that never ends
	deadline        time.Time
}

// Until returns a context with the values of ctx and with the given deadline. Its Done channel is
// the Done channel of ctx.
func Until(ctx context.Context, deadline time.Time) context.Context {
	return deadlineContext{ctx, deadline}
}

// Deadline returns the deadline that Until has set, and true.
func (u deadlineContext) Deadline() (deadline time.Time, ok bool) { return u.deadline, true }

// UndoFor returns how long the tombstone of a token must exist. The parameter unclear is true if an
// acquire of the token has no answer, and lease is the TTL of the token's lease. Without an unclear
// acquire, no tombstone is needed, and the result is 0. Otherwise the tombstone exists for longer
// than a late acquire can have an effect.
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
