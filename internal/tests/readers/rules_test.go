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

// notComparable has the rules whose absence a comparison with lockertest's Store cannot show,
// each with the reason.
var notComparable = map[Rule]string{
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
			broken, after := breakWithout(rule, 4**runs)
			line := fmt.Sprintf("%-32s %-50s", rule, summary(broken, after))
			if len(broken) == 0 {
				t.Errorf("no invariant broke in %d histories", after)
			}
			if why, ok := notComparable[rule]; ok {
				t.Log(line + " " + why)
				return
			}
			n, differs := differsWithout(t, rule, 5000)
			if !differs {
				t.Errorf("lockertest's Store did as the model without the rule, in %d histories", n)
			}
			t.Log(line + fmt.Sprintf(" differs from the Store after %d histories", n))
		})
	}
}

// breakWithout plays histories on a model without a rule, until an invariant breaks, but at most
// "most" histories. It returns how often each invariant broke, and the number of histories. With
// -tally, it always plays all histories.
func breakWithout(rule Rule, most int) (broken map[string]int, histories int) {
	broken = make(map[string]int)
	for i := range uint64(most) {
		h := newHistory(chance{rand.New(rand.NewPCG(*seed+i, 0))}, newModel(rule), nil, abilitiesOf(i))
		if play(h, 40); len(h.watch.broken) > 0 {
			broken[h.watch.broken[0].invariant]++
			if !*tally {
				return broken, int(i) + 1
			}
		}
	}
	return broken, most
}

func summary(broken map[string]int, histories int) string {
	var all []string
	for _, invariant := range slices.Sorted(maps.Keys(broken)) {
		all = append(all, fmt.Sprintf("%d × %s", broken[invariant], invariant))
	}
	return fmt.Sprintf("%s in %d histories", strings.Join(all, ", "), histories)
}

// differsWithout plays histories on lockertest's Store and on a model without a rule, until they
// differ, but at most "most" histories. It returns the number of histories, and whether they
// differ.
func differsWithout(t *testing.T, rule Rule, most int) (histories int, differs bool) {
	for i := range uint64(most) {
		s := inMemory(t)
		s.patience = 50 * time.Millisecond // short, because the expected message may be missing without the rule
		h := newHistory(chance{rand.New(rand.NewPCG(*seed+i, 0))}, s, newModel(rule), abilities{mute: i%3 == 0})
		if play(h, 40); h.differs != "" {
			return int(i) + 1, true
		}
	}
	return most, false
}
