package locker

import (
	"iter"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
)

// A Backoff is the sequence of pauses between the attempts of one wait, where nobody tells the waiter that its turn has
// come, and while the server gives no answer. Each wait ranges over it afresh, so one value serves any number of waiters. A
// wait whose Backoff ends is refused with ErrBusy, or with ErrUnavailable when its last attempt was not answered.
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

// Jitter makes each pause of b a random one between half and all of it, so that waiters that were refused together do
// not come back together.
func Jitter(b Backoff) Backoff { return calls.Jittered(b) }
