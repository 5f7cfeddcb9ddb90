package calls

import (
	"iter"
	"math/rand/v2"
	"time"
)

// BetweenRepeats are the pauses between repetitions of a release or an extension.
var BetweenRepeats = Jittered(Doubling(10*time.Millisecond, 500*time.Millisecond))

// Doubling returns a series of pauses. The first pause has the length first, and each later pause
// is twice as long as the one before. No pause is longer than most.
func Doubling(first, most time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for d := min(first, most); yield(d); d = min(2*d, most) {
		}
	}
}

// Jittered replaces each pause by a random one between half of it and all of it.
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
