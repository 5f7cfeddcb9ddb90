package asynqlock

import (
	"testing"
	"time"
)

// After a slow reply of the server, the translated time is earlier or later than the server's time.
// Deliveries must keep their order even if a new translation begins between them.
func TestDeliveriesKeepTheirOrderWhenTheClockIsMeasuredAnew(t *testing.T) {
	for name, error := range map[string]time.Duration{"behind": -200 * time.Millisecond, "ahead": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			var c serverClock
			began := time.Now()
			c.observe(0, began, began)
			again := began.Add(remeasureAfter)
			if !c.mustRead(again) {
				t.Fatal("the clock is not measured anew")
			}
			before := c.serverTime(again.Add(-time.Millisecond))
			c.observe((remeasureAfter + error).Microseconds(), again, again)
			last := c.serverTime(again.Add(-2 * time.Millisecond)) // the time of this delivery is read late
			if last >= before {
				t.Errorf("a delivery that came earlier is at %d, not before %d", last, before)
			}
			last = before
			for after := time.Duration(0); after < time.Second; after += 10 * time.Millisecond {
				next := c.serverTime(again.Add(after))
				if next <= last {
					t.Fatalf("a delivery %v after the answer is at %d, not behind %d", after, next, last)
				}
				last = next
			}
			if off := time.Duration(last)*time.Microsecond - again.Add(990*time.Millisecond).Sub(began) - error; off != 0 {
				t.Errorf("after a second the clock is still off by %v", off)
			}
		})
	}
}
