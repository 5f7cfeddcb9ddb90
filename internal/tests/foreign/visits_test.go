package foreign

import (
	"slices"
	"strings"
	"testing"
)

// checkVisits reads a list of "in NAME" and "out NAME", in the server's order. It returns the
// number of visits that have an "in" and an "out", and fails the test if two visits overlap.
// Only the last visit of a killed visitor may lack its "out".
func checkVisits(t testing.TB, log []string, killed ...string) (visits int) {
	t.Helper()
	inside := ""
	for i, entry := range log {
		what, name, _ := strings.Cut(entry, " ")
		switch {
		case what == "in" && inside != "" && !slices.Contains(killed, inside):
			t.Errorf("entry %d: %s came in while %s was in", i, name, inside)
			inside = name
		case what == "in":
			inside = name
		case inside != name:
			t.Errorf("entry %d: %s went out and %q was in", i, name, inside)
		default:
			inside = ""
			visits++
		}
	}
	return visits
}

func TestOverlappingVisitsAreFound(t *testing.T) {
	t.Parallel()
	whole := []string{"in a", "out a", "in b", "out b", "in a", "out a"}
	if n := checkVisits(t, whole); n != 3 {
		t.Errorf("%d visits", n)
	}
	if n := checkVisits(t, []string{"in a", "in b", "out b"}, "a"); n != 1 {
		t.Errorf("%d visits after a death", n)
	}
	for _, bad := range [][]string{
		{"in a", "in b", "out b", "out a"},
		{"in a", "in b", "out a", "out b"},
		{"in a", "out b"},
		{"out a"},
	} {
		found := &counter{TB: t}
		checkVisits(found, bad)
		if found.n == 0 {
			t.Errorf("nothing was found in %v", bad)
		}
	}
}

// counter counts errors instead of reporting them.
type counter struct {
	testing.TB
	n int
}

func (c *counter) Errorf(string, ...any) { c.n++ }
