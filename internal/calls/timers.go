package calls

import (
	"sync"
	"time"
)

// Timers are used again and again: nearly all of them are stopped long before they fire. They
// belong to an Engine, and not to all, because a timer that was made in a testing/synctest bubble
// must stay there.
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

// Stop gives the timer back. Nobody reads its channel after that; what it may have sent is gone
// with the next Reset.
func (t *Timers) Stop(timer *time.Timer) {
	timer.Stop()
	t.pool.Put(timer)
}
