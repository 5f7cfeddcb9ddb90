package locker

import "time"

// instant is a time on the monotonic clock, in ns; 0 means that there is no time. A keeper has
// several instants for each hold and compares them all the time. An instant needs one word of
// memory, and a time.Time needs three.
type instant int64

// epoch is the time from which instants count.
var epoch = time.Now()

// instantOf returns t as an instant.
func instantOf(t time.Time) instant { return instant(t.Sub(epoch)) }

// plus returns the instant that is d after i.
func (i instant) plus(d time.Duration) instant { return i + instant(d) }

// sub returns the duration from start to i.
func (i instant) sub(start instant) time.Duration { return time.Duration(i - start) }

// time returns i as a time.Time. It calculates from the present time, because the wall clock may
// have been set since the epoch.
func (i instant) time() time.Time {
	now := time.Now()
	return now.Add(i.sub(instantOf(now)))
}
