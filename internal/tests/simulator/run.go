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

// Add adds the numbers of o to t.
func (t *Tally) Add(o Tally) {
	t.Grants += o.Grants
	t.Messages += o.Messages
	t.Local += o.Local
	t.Losses += o.Losses
	t.Cancels += o.Cancels
	t.Faults += o.Faults
}

// Run simulates the scenario s. The parameter omitted is the rule that the run leaves out; 0:
// none. The same arguments lead to the same run.
func Run(s Scenario, seed uint64, omitted Rule) Result {
	w := newWorld(s, seed, omitted)
	w.run()
	return Result{s, seed, omitted, w.events, w.tally, w.violations}
}
