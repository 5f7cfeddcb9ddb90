package simulator

import (
	"maps"
	"slices"
	"testing"
)

// exposed maps each rule to the first scenario in which an invariant breaks without the rule.
var exposed = map[Rule]string{
	SentOnce:       "rough",
	OneHold:        "extended",
	Idempotent:     "patient-fair",
	CountFromSend:  "patient-fair",
	WriteFirst:     "full",
	OnlyLengthen:   "extended",
	FreshMessage:   "patient-fair",
	IgnoreIfHeld:   "patient-fair",
	UndoUnanswered: "fickle",
	ResetDeaf:      "deaf",
	NoOvertaking:   "dead-fair",
	Recheck:        "rough",
	KeepHanded:     "stopped-fair",
	VoidStamp:      "stamped",
	StayInBlock:    "steps",
	LossEndsStreak: "pauses",
	WholeToken:     "stamped",
	ShortWait:      "patient-fair",
	OnlyNearer:     "hinted",
}

// TestRules switches off one rule after the other. Each time, an invariant must break. Otherwise
// the rule is not necessary, or the simulation does not detect its absence.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, rule := range Rules() {
		t.Run(rule.String(), func(t *testing.T) {
			t.Parallel()
			s := scenario(t, exposed[rule])
			if *tally {
				count(t, s, rule)
				return
			}
			const budget = 200
			events := 0
			for i := range uint64(budget) {
				r := Run(s, *seed+i, rule)
				events += r.Events
				for _, v := range r.Violations {
					t.Logf("after %d runs and %d events, scenario %s: %v", i+1, events, s.Name, v)
					return
				}
			}
			t.Errorf("nothing broke in %d runs (%d events) of scenario %s", budget, events, s.Name)
		})
	}
}

// count runs the scenario s without a rule. It logs how often each invariant breaks.
func count(t *testing.T, s Scenario, rule Rule) {
	t.Helper()
	broken, events := make(map[Invariant]int), 0
	for i := range *runs {
		r := Run(s, *seed+uint64(i), rule)
		events += r.Events
		for _, v := range r.Violations {
			broken[v.Invariant]++
		}
	}
	t.Logf("%s: %d runs, %d events", s.Name, *runs, events)
	for _, i := range slices.Sorted(maps.Keys(broken)) {
		t.Logf("%4d × %s", broken[i], i)
	}
}

func scenario(t *testing.T, name string) Scenario {
	t.Helper()
	all := Scenarios()
	i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no scenario %q", name)
	}
	return all[i]
}
