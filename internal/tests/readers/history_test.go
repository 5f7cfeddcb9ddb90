package readers

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var (
	tally = flag.Bool("tally", false, "TestRules: count over all runs, and do not stop at the first")
	runs  = flag.Int("runs", 5000, "how many histories TestModel plays; TestRules plays four times as many without a rule, at most")
	seed  = flag.Uint64("seed", 1, "of the first of them")
)

// chance is a source that makes its choices by a random generator with a fixed seed.
type chance struct{ *rand.Rand }

func (c chance) choose(n int, _ string) int { return c.IntN(n) }

// play makes steps in the history h, as many as the parameter steps, and then ends the history.
// It stops early when a check fails.
func play(h *history, steps int) {
	for range steps {
		if !h.step() {
			return
		}
	}
	h.finish()
}

// abilitiesOf returns the i-th combination of abilities. No combination has both plain and
// evicts. A reader that got the key from a Locker without readers is in no phase, so it has no
// entry among the readers that the server could evict.
func abilitiesOf(i uint64) abilities {
	return abilities{plain: i%3 == 0, evicts: i%3 == 1, mute: i%4 == 0}
}

// TestModel plays histories on the model alone, with all rules. No invariant may break.
func TestModel(t *testing.T) {
	t.Parallel()
	for i := range uint64(*runs) {
		h := newHistory(chance{rand.New(rand.NewPCG(*seed+i, 0))}, newModel(0), nil, abilitiesOf(i))
		if play(h, 40); !h.fine() {
			t.Fatalf("seed %d:\n%v", *seed+i, h)
		}
	}
}
