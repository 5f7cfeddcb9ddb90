package readers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// apart maps some rules to the reason why a comparison with lockertest's Store cannot show that the
// rule is missing.
var apart = map[Rule]string{
	EvictedReaders: "a Memory evicts nothing",
	Announce:       "to be told more than must be is no difference",
}

// TestRules leaves out one rule after the other. Then an invariant must break in the model, and
// the comparison with lockertest's Store must fail. Otherwise the rule is not necessary, or the
// histories detect too little.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, rule := range Rules() {
		t.Run(rule.String(), func(t *testing.T) {
			t.Parallel()
			broken, after := missed(rule, 4**runs)
			line := fmt.Sprintf("%-32s %-50s", rule, seen(broken, after))
			if len(broken) == 0 {
				t.Errorf("no invariant broke in %d histories", after)
			}
			if why, ok := apart[rule]; ok {
				t.Log(line + " " + why)
				return
			}
			n, differs := found(t, rule, 5000)
			if !differs {
				t.Errorf("lockertest's Store did as the model without the rule, in %d histories", n)
			}
			t.Log(line + fmt.Sprintf(" differs from the Store after %d histories", n))
		})
	}
}

// missed plays histories on a model without a rule, until an invariant breaks. With -tally, missed
// continues, and counts the broken invariants.
func missed(rule Rule, most int) (broken map[string]int, histories int) {
	broken = make(map[string]int)
	for i := range uint64(most) { //nolint:gosec // not negative
		h := newHistory(chance{rand.New(rand.NewPCG(*seed+i, 0))}, newModel(rule), nil, every(i))
		if play(h, 40); len(h.watch.broken) > 0 {
			broken[h.watch.broken[0].invariant]++
			if !*tally {
				return broken, int(i) + 1 //nolint:gosec // as above
			}
		}
	}
	return broken, most
}

func seen(broken map[string]int, histories int) string {
	var all []string
	for _, invariant := range slices.Sorted(maps.Keys(broken)) {
		all = append(all, fmt.Sprintf("%d × %s", broken[invariant], invariant))
	}
	return fmt.Sprintf("%s in %d histories", strings.Join(all, ", "), histories)
}

// found compares lockertest's Store with a model that leaves out a rule.
func found(t *testing.T, rule Rule, most int) (histories int, differs bool) {
	for i := range uint64(most) { //nolint:gosec // not negative
		s := inMemory(t)
		s.patience = 50 * time.Millisecond // short, because the expected message may be missing without the rule
		h := newHistory(chance{rand.New(rand.NewPCG(*seed+i, 0))}, s, newModel(rule), abilities{mute: i%3 == 0})
		if play(h, 40); h.differs != "" {
			return int(i) + 1, true //nolint:gosec // as above
		}
	}
	return most, false
}
