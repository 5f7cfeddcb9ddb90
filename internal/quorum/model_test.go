package quorum

import (
	"flag"
	"testing"
	"time"
)

// This model simulates the members of a quorum and their clocks. Servers lose their data in every
// way and at every time. Clients come and go. Messages are lost, late, or executed late. Addresses
// begin to lead to other servers. The model calls the library's function "decide", but has its own,
// independent implementation of servers and of votes. Each rule can be switched off, and then a
// check must fail. If no check fails, the simulation detects too little, or the rule is not
// necessary.
var seeds = flag.Int("seeds", 0, "how many runs of the membership model; 0: a few")

// rules are the rules that can be switched off.
type rules struct {
	voteIdentity, voteText, renewText, grouped, wait, manyClocks, raised, longest, skew, freeSeat, takeBack bool
}

var allRules = rules{true, true, true, true, true, true, true, true, true, true, true}

const (
	modelSkew    = 100 * time.Millisecond
	modelTimeout = 80 * time.Millisecond
)

func TestTheMembershipModelIsSafeAndComesBack(t *testing.T) {
	runs := max(*seeds, 12)
	for fault := range modelFaults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			grants := 0
			for seed := range runs {
				w := newModel(uint64(seed), fault, allRules)
				if w.run(); w.broken != "" {
					t.Fatalf("seed %d: %s", seed, w.broken)
				}
				grants += w.grants
			}
			if grants < 15*runs {
				t.Errorf("%d grants in %d runs: the model shows little", grants, runs)
			}
		})
	}
}

func TestEachRuleOfTheMembershipIsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		fault string
		off   func(*rules)
		first int // a seed with which the failure is found soon
	}{
		"a vote compares the server's identity":                        {"restart with data", func(r *rules) { r.voteIdentity = false }, 56},
		"a vote compares the text of the marker":                       {"an address moves", func(r *rules) { r.voteText = false }, 0},
		"a renewal compares the text of the marker":                    {"promotion", func(r *rules) { r.renewText = false }, 1545},
		"votes count together under the same generations only":         {"replacement", func(r *rules) { r.grouped = false }, 0},
		"a server that forgot waits":                                   {"flush", func(r *rules) { r.wait = false }, 0},
		"one clock ends no wait":                                       {"a wrong clock at the server that joins", func(r *rules) { r.manyClocks = false }, 0},
		"the wait begins when the others know":                         {"replacement", func(r *rules) { r.raised = false }, 586},
		"the wait is as long as the longest lease of all":              {"a longer lease", func(r *rules) { r.longest = false }, 0},
		"a server without a marker gets a seat that no other node has": {"a rolling restart", func(r *rules) { r.freeSeat = false }, 0},
		"a server that has proven its seat takes it back":              {"a wrong list", func(r *rules) { r.takeBack = false }, 0},
		"servers keep a lease for twice the skew longer":               {"clocks wander", func(r *rules) { r.skew = false }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := allRules
			c.off(&with)
			for seed := range max(*seeds, 3000) {
				w := newModel(uint64(c.first+seed), c.fault, with)
				if w.run(); w.broken != "" {
					t.Logf("seed %d: %s", c.first+seed, w.broken)
					return
				}
			}
			t.Error("nothing breaks without this rule")
		})
	}
}
