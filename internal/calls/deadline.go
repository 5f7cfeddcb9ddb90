package calls

import (
	"context"
	"time"
)

// until is a context that says when it is too late, and has no timer that ends it: for calls that
// the Engine abandons by itself. Go's sockets and go-redis ask for the deadline. It costs a
// quarter of context.WithTimeout, which also is the larger part of what a release costs without a
// server.
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

// UndoFor is how long a tombstone must stand: 0 when every acquire of the token was answered,
// otherwise longer than any late execution could matter.
func UndoFor(unclear bool, lease time.Duration) time.Duration {
	if !unclear {
		return 0
	}
	return max(lease, time.Minute)
}

// QueueLife is how long it is worth trying to take an entry out of a server's queue. After that it
// is gone, or is handed the key, which is then released.
const QueueLife = 10 * time.Second

const Timeout = 5 * time.Second // of calls in the background
