package foreign

import (
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/guarantees.md anew")

const (
	page      = "../../../docs/guarantees.md"
	tableFrom = "<!-- made by internal/tests/foreign: go test -run TestEveryLibraryAndLatchkit -update -->\n"
	tableTo   = "<!-- end of what is made -->\n"
)

// In this test, every library locks the same keys as latchkit. docs/guarantees.md shows the
// results.
func TestEveryLibraryAndLatchkit(t *testing.T) {
	var mu sync.Mutex
	rows := make(map[string]string)
	t.Run("libraries", func(t *testing.T) {
		for _, l := range libraries {
			t.Run(l.name, func(t *testing.T) {
				t.Parallel()
				row := rowOf(meet(t, l))
				mu.Lock()
				defer mu.Unlock()
				rows[l.name] = row
			})
		}
	})
	if t.Failed() {
		return
	}
	table := head()
	for _, l := range libraries {
		table += rows[l.name]
	}
	compare(t, table)
}

func head() string {
	heads, lines := "| library | tried with |", "|---|---|"
	for _, c := range checks {
		heads += " " + c.head + " |"
		lines += "---|"
	}
	return heads + "\n" + lines + "\n"
}

// rowOf makes all checks with one library, and returns the row of the table.
func rowOf(m *meeting) string {
	m.Helper()
	row := "| " + m.library.name + " | " + m.peer.versions + " |"
	for _, c := range checks {
		found := c.do(m)
		if m.Failed() {
			m.Fatalf("the check %q has failed", c.head)
		}
		sign := "●"
		if found != "" {
			sign = "○ it " + found
		}
		row += " " + sign + " |"
	}
	return row + "\n"
}

// compare compares the table with the table in docs/guarantees.md, or writes it to this file.
func compare(t *testing.T, table string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableFrom)
	old, after, ends := strings.Cut(rest, tableTo)
	switch {
	case !begins || !ends:
		t.Fatalf("%s does not have the lines\n%s%s between which the table stands", page, tableFrom, tableTo)
	case old == "\n"+table+"\n":
	case *update:
		text := before + tableFrom + "\n" + table + "\n" + tableTo + after
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not say what has happened. If that is right, run this test with -update. It would say:\n%s", page, table)
	}
}
