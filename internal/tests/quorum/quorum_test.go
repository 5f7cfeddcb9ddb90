package quorum

import (
	"flag"
	"fmt"
	"testing"
)

var steps = flag.Float64("steps", 1.6e7, "steps of TestTheRules")

// scenarios returns the scenarios in which no invariant may break. They have 3 or 5 nodes, and
// leases that expire by the clock or at any instant.
func scenarios() (all []Scenario) {
	for _, n := range []int{3, 5} {
		for _, any := range []bool{false, true} {
			all = append(all, Scenario{
				Nodes: n, Clients: 4, TTL: 600, Skew: 100, Differ: 90, Gate: 700, Block: 4, Forget: 5000, Lose: 4, Repeat: 4, AnyExpiry: any,
			})
		}
	}
	return all
}

func (s Scenario) name() string {
	if s.AnyExpiry {
		return fmt.Sprintf("%d nodes, expiries at any instant", s.Nodes)
	}
	return fmt.Sprintf("%d nodes", s.Nodes)
}

func TestTheRulesKeepFencesUniqueAndLeasesApart(t *testing.T) {
	t.Parallel()
	all := scenarios()
	for i, s := range all {
		t.Run(s.name(), func(t *testing.T) {
			t.Parallel()
			r := Run(s, uint64(i)+42, int(*steps)/len(all))
			t.Logf("%+v, %d %% in one round", r, 100*r.OneRound/max(r.Grants, 1))
			if r.Broken != [kinds]int{} {
				t.Errorf("unique, forward, in order, alone: %v broken", r.Broken)
			}
			if r.Grants < int(*steps)/len(all)/2000 || r.Forgot < 10 || r.Expired < 10 {
				t.Errorf("too little happened: %+v", r)
			}
		})
	}
}

// The test switches off each rule once. An invariant must then break, because otherwise the
// simulation proves nothing about the rule.
func TestEachRuleIsNeeded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule   Rule
		breaks Kind
		change func(*Scenario)
	}{
		{Confirm, Forward, nil},
		{Owner, InOrder, func(s *Scenario) { s.AnyExpiry = true }},
		{Pin, InOrder, func(s *Scenario) { s.AnyExpiry, s.Repeat = true, 20 }},
		{Block, Unique, nil},
		{Clock, Forward, nil},
		{Gate, Alone, nil},
		{Sent, Alone, func(s *Scenario) { s.TTL = 100 }},
		// Here a node votes again too early: after a time that is shorter than the difference of
		// the clocks.
		{None, Forward, func(s *Scenario) { s.Gate, s.Differ, s.Skew, s.TTL = 1, 5000, 5000, 600 }},
	} {
		t.Run(c.rule.String(), func(t *testing.T) {
			t.Parallel()
			s := scenarios()[0]
			s.Without = c.rule
			if c.change != nil {
				c.change(&s)
			}
			var r Result
			for seed := uint64(1); seed <= 20 && r.Broken[c.breaks] == 0; seed++ {
				r = Run(s, seed, 1_000_000)
			}
			t.Logf("%+v", r)
			if r.Broken[c.breaks] == 0 {
				t.Errorf("nothing broke without the rule: %v", r.Broken)
			}
		})
	}
}
