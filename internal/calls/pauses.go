package calls

import (
	"iter"
	"math/rand/v2"
	"time"
)

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
