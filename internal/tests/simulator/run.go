package simulator

// Result is the result of a run.
type Result struct {
	Scenario   Scenario
	Seed       uint64
	Without    Rule
	Events     int
	Tally      Tally
	Violations []Violation // at most one: a violation ends the run
}

// Add adds the numbers of o.
func (t *Tally) Add(o Tally) {
	t.Grants += o.Grants
	t.Messages += o.Messages
	t.Local += o.Local
	t.Losses += o.Losses
	t.Cancels += o.Cancels
	t.Faults += o.Faults
}

// Run simulates a scenario without one of the rules, or with all rules if without is 0. The same
// arguments lead to the same run.
func Run(s Scenario, seed uint64, without Rule) Result {
	w := newWorld(s, seed, without)
	w.run()
	return Result{s, seed, without, w.events, w.tally, w.violations}
}
