package optimistic

import "github.com/latchkit/latchkit/locker"

// WithBackoff sets the pauses, so that a test knows what an update does when its ctx ends.
func WithBackoff(b locker.Backoff) Option { return func(u *update) { u.backoff = b } }
