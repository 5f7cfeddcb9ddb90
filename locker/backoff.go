package locker

import (
	"iter"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
)

// A Backoff is the sequence of pauses between the attempts of one wait, where the waiter cannot be
// notified, or while the server gives no answer. Each wait starts the sequence again, so one value
// serves any number of waiters. When the sequence ends, the wait fails with ErrBusy, or with
// ErrUnavailable if its last attempt was not answered.
type Backoff = iter.Seq[time.Duration]

// Constant pauses for d each time.
func Constant(d time.Duration) Backoff {
	return func(yield func(time.Duration) bool) {
		for yield(d) {
		}
	}
}

// Exponential pauses for first, then twice as long each time, up to most.
func Exponential(first, most time.Duration) Backoff { return calls.Doubling(first, most) }

// Jitter replaces each pause of b by a random one between half of it and all of it, so that
// waiters that were refused together do not come back together.
func Jitter(b Backoff) Backoff { return calls.Jittered(b) }
