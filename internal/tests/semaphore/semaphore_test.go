package semaphore

import (
	"flag"
	"testing"
)

var runs = flag.Int("runs", 4, "seeds for each scenario")

// TestModel plays all scenarios with all rules. No violation may occur, and no caller may wait for
// long while units are free.
func TestModel(t *testing.T) {
	t.Parallel()
	for name, x := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := total(x.Scenario, 0)
			if r.Over+r.Fences+r.Undone+r.Overtaken+r.Left > 0 || r.Idle > x.idle || r.Grants < 100 {
				t.Errorf("%+v, want no violation, and at most %d ms beside free units", r, x.idle/milli)
			}
		})
	}
}

// sign reports whether the result r shows that a rule is missing in the scenario x. For most
// rules, the sign is a violation that r counts; for others, it is a wait that is longer than
// any wait with all rules.
type sign func(r Result, x scenario) bool

func breaks(r Result, _ scenario) bool     { return r.Over > 0 }
func overtaken(r Result, _ scenario) bool  { return r.Overtaken > 0 }
func undone(r Result, _ scenario) bool     { return r.Undone > 0 }
func leftBehind(r Result, _ scenario) bool { return r.Left > 0 }
func idle(r Result, x scenario) bool       { return r.Idle > x.idle }

var needed = map[Rule]struct {
	scenario string
	sign     sign
}{
	FreshMessages: {"stops", breaks}, IgnoreWhenHeld: {"healthy", breaks}, CountFromSend: {"extends", breaks}, OnlyLengthen: {"extends", breaks},
	SmallestLimit: {"agree", breaks}, ServerTime: {"clocks", breaks}, PermitsAreTrue: {"evicts", breaks}, SameSize: {"evicts", breaks},
	NoOvertaking: {"healthy", overtaken}, Tombstone: {"lossy", undone}, LapsedLoses: {"stops", idle}, OutliveL: {"stops", idle},
	LivingHead: {"gone", idle}, SeenHead: {"seen", idle}, ServeAll: {"leave", idle}, LeaverServes: {"leave", idle},
	TellAfterMost: {"few", idle}, AskAgain: {"lossy", idle}, NextLeads: {"wide", idle},
	PassCrossing: {"healthy", leftBehind},
}

// TestRules leaves out one rule after the other. A run must show that the rule is missing.
// Otherwise the rule is not necessary, or the simulator detects too little.
func TestRules(t *testing.T) {
	t.Parallel()
	for r := Rule(1); r < rulesEnd; r++ {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			need := needed[r]
			x := scenarios[need.scenario]
			got := total(x.Scenario, r)
			if !need.sign(got, x) {
				t.Errorf("%s: %+v shows nothing", need.scenario, got)
			}
			t.Logf("%s: %+v", need.scenario, got)
		})
	}
}

func total(s Scenario, omitted Rule) (all Result) {
	for seed := range uint64(*runs) {
		x := Run(s, omitted, seed, 120)
		all.Over += x.Over
		all.Fences += x.Fences
		all.Undone += x.Undone
		all.Overtaken += x.Overtaken
		all.Left += x.Left
		all.Grants += x.Grants
		all.Wasted += x.Wasted
		all.Idle = max(all.Idle, x.Idle)
	}
	return all
}

var base = Scenario{limits: []int{4}, heavy: 0.1, callers: 5, most: 64, ttl: 3 * second, longest: 50 * milli, pause: 50 * milli, streaks: true}

func baseWith(change func(*Scenario)) Scenario {
	s := base
	change(&s)
	return s
}

// scenario is a Scenario with idle, the longest time that a caller may wait while units are free.
type scenario struct {
	Scenario
	idle int64
}

var scenarios = map[string]scenario{
	"healthy": {base, 50 * milli},
	"agree":   {baseWith(func(s *Scenario) { s.limits = []int{1, 2, 4, 16} }), 50 * milli},
	"lossy": {baseWith(func(s *Scenario) {
		s.delays, s.losses, s.cancels, s.extends = 0.02, 0.01, 0.1, 0.1
	}), 4 * second},
	"stops": {baseWith(func(s *Scenario) {
		s.delays, s.losses, s.stops, s.kills, s.lingers, s.limits = 0.01, 0.005, 0.2, 0.05, 0.3, []int{1, 2, 4}
	}), 5 * second},
	"one": {baseWith(func(s *Scenario) {
		s.stops, s.limits, s.oneStops, s.heavy, s.streaks, s.longest, s.pause = 0.2, []int{1}, true, 0, false, 20*milli, 100*milli
	}), 2100 * milli},
	"seen": {baseWith(func(s *Scenario) {
		s.stops, s.heavy, s.oneStops, s.longest, s.pause = 0.3, 0.3, true, 20*second, second
	}), 6 * second},
	"gone": {baseWith(func(s *Scenario) {
		s.kills, s.heavy, s.longest, s.pause = 0.5, 0.5, 5*second, second
	}), 4 * second},
	"extends": {baseWith(func(s *Scenario) {
		s.delays, s.stops, s.extends, s.longest = 0.2, 0.3, 0.5, 10*second
	}), 12 * second},
	"wide": {baseWith(func(s *Scenario) {
		s.limits, s.heavy, s.longest, s.pause, s.callers, s.streaks = []int{16}, 0, second, 10*milli, 8, false
	}), 100 * milli},
	"evicts": {baseWith(func(s *Scenario) { s.evicts, s.foreign, s.longest = 0.2, 0.2, 500*milli }), 100 * milli},
	"clocks": {baseWith(func(s *Scenario) { s.skews, s.longest = 3*second, 500*milli }), 100 * milli},
	"steps":  {baseWith(func(s *Scenario) { s.steps = 900 * milli }), 2 * second},
	"few":    {baseWith(func(s *Scenario) { s.most, s.heavy, s.streaks, s.longest = 1, 0.3, false, second }), 100 * milli},
	"leave":  {baseWith(func(s *Scenario) { s.cancels, s.heavy, s.callers, s.longest = 0.5, 0.5, 2, 4*second }), 100 * milli},
}
