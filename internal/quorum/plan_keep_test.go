package quorum

import (
	"testing"
	"time"
)

// A wait is over when it is over by the clocks of a quorum of nodes. One clock that runs ahead does
// not end it, and one that stands still does not lengthen it.
func TestOneWrongClockDoesNotEndAWait(t *testing.T) {
	begun := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		passed [3]time.Duration // since the wait began, by the clock of each node
		want   time.Duration
	}{
		"all clocks agree":   {[3]time.Duration{20 * time.Second, 20 * time.Second, 20 * time.Second}, 10 * time.Second},
		"one runs ahead":     {[3]time.Duration{time.Hour, 20 * time.Second, 20 * time.Second}, 10 * time.Second},
		"one stands still":   {[3]time.Duration{20 * time.Second, 0, 20 * time.Second}, 10 * time.Second},
		"over by two clocks": {[3]time.Duration{40 * time.Second, 0, 40 * time.Second}, 0},
	} {
		council := &council{wish: wish{longest: 30 * time.Second, quarantine: func(longest time.Duration) time.Duration { return longest }}, need: 2}
		for _, passed := range c.passed {
			council.views = append(council.views, view{clock: begun.Add(passed), waits: map[string]time.Time{"wait": begun}})
		}
		council.longest = council.wish.longest
		if left := council.remainingWait("wait", nodes(0).plus(0).plus(1).plus(2)); left != c.want {
			t.Errorf("%s: %v remain, want %v", name, left, c.want)
		}
	}
}
