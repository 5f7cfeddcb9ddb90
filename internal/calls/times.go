package calls

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync"
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

// BetweenRepeats are the pauses between repetitions of a release or an extension.
var BetweenRepeats = Jittered(Doubling(10*time.Millisecond, 500*time.Millisecond))

// Doubling returns a series of pauses. The first pause lasts for the parameter first, and each
// later pause is twice as long as the pause before it. No pause is longer than the parameter most.
func Doubling(first, most time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for d := min(first, most); yield(d); d = min(2*d, most) {
		}
	}
}

// Jittered replaces each pause by a random pause that is at least half as long, and not longer.
func Jittered(pauses iter.Seq[time.Duration]) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for d := range pauses {
			if d > 1 {
				d = d/2 + rand.N(d/2+1)
			}
			if !yield(d) {
				return
			}
		}
	}
}

// Timers is a pool of timers. Nearly all timers are stopped long before they fire, so they can be
// used again. Each Engine has its own pool, because a timer that was made in a testing/synctest
// bubble must stay in the bubble.
type Timers struct{ pool sync.Pool }

// Start returns a timer that fires after d. Give it back with Stop.
func (t *Timers) Start(d time.Duration) *time.Timer {
	timer, ok := t.pool.Get().(*time.Timer)
	if !ok {
		return time.NewTimer(d)
	}
	timer.Reset(d)
	return timer
}

// Stop stops the timer and returns it to the pool. After that, the caller must not read the timer's
// channel. The next Reset clears the channel.
func (t *Timers) Stop(timer *time.Timer) {
	timer.Stop()
	t.pool.Put(timer)
}
