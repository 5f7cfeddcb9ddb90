package simulator

import (
	"flag"
	"runtime"
	"testing"
	"time"
)

var (
	seed     = flag.Uint64("seed", 1, "the first seed")
	runs     = flag.Int("runs", 4, "how many seeds each scenario is run with")
	simulate = flag.Duration("simulate", 0, "go on with further seeds for this long in all")
	tally    = flag.Bool("tally", false, "TestRules: count violations over -runs seeds, and do not stop at the first")
)

// TestProtocol runs every scenario with all rules. No invariant may break.
func TestProtocol(t *testing.T) {
	t.Parallel()
	share := *simulate * time.Duration(runtime.GOMAXPROCS(0)) / time.Duration(len(Scenarios()))
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			events, done, sum := 0, 0, Tally{}
			for began := time.Now(); done < *runs || time.Since(began) < share; done++ {
				r := Run(s, *seed+uint64(done), 0)
				events += r.Events
				sum.Add(r.Tally)
				for _, v := range r.Violations {
					t.Fatalf("%v\n%s\nagain: go test ./simulator -run 'TestProtocol/^%s$' -seed %d -runs 1", v, v.Trace, s.Name, r.Seed)
				}
			}
			if sum.Grants == 0 || len(s.Faults) > 0 && sum.Faults == 0 {
				t.Errorf("a run in which nothing happens proves nothing: %+v", sum)
			}
			t.Logf("%d runs, %d events: %+v", done, events, sum)
		})
	}
}

// TestSameSeedSameRun checks that equal seeds lead to equal runs. So a failed run can be
// repeated with its seed.
func TestSameSeedSameRun(t *testing.T) {
	t.Parallel()
	for _, s := range Scenarios() {
		a, b := Run(s, *seed, 0), Run(s, *seed, 0)
		if a.Events != b.Events || a.Tally != b.Tally {
			t.Errorf("%s: %d events and %+v, then %d and %+v", s.Name, a.Events, a.Tally, b.Events, b.Tally)
		}
	}
}
