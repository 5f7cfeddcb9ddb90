package calls

import (
	"sync"
	"time"
)

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
