package locker

import (
	"iter"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
)

// A Backoff is the sequence of pauses between the attempts of one wait. The pauses are used if the
// waiter cannot be notified, or while the server gives no answer. Each wait starts the sequence
// again, so one value serves any number of waiters. When the sequence ends, the wait fails with
// ErrBusy, or with ErrUnavailable if the last attempt of the wait was not answered.
type Backoff = iter.Seq[time.Duration]

// Constant returns a Backoff whose pauses all have the length d.
func Constant(d time.Duration) Backoff {
	return func(yield func(time.Duration) bool) {
		for yield(d) {
		}
	}
}

// Exponential returns a Backoff that begins with a pause of the length first. Each later pause is
// twice as long as the pause before it, but never longer than the parameter most.
func Exponential(first, most time.Duration) Backoff { return calls.Doubling(first, most) }

// Jitter replaces each pause of b by a random pause between half of its length and its full length.
// So waiters that were refused at the same time do not ask again at the same time.
func Jitter(b Backoff) Backoff { return calls.Jittered(b) }
