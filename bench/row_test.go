package main

import (
	"flag"
	"strings"
	"testing"
	"time"
)

var rowsPart = flag.Int("part", time.Now().YearDay()%rowsParts, "which third of the rows runs; -1: all")

const rowsParts = 3

// TestRows runs a third of the rows for a short time, each day another third, to show that the
// bench works. The turns are too short for meaningful figures. The test fails if two holders
// overlap.
func TestRows(t *testing.T) {
	brief := order{
		rounds: 1, turn: 30 * time.Millisecond, aloneRounds: 1,
		hoardRounds: 1, hoardTTL: time.Second, leases: 200, peerLeases: 20,
		inheritTTL: 1500 * time.Millisecond,
	}
	for i, r := range rows {
		if *rowsPart >= 0 && i%rowsParts != *rowsPart {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			tbl, err := r.run(t.Context(), brief)
			if err != nil {
				t.Fatal(err)
			}
			if len(tbl.rows) < 4 {
				t.Errorf("only %d contestants", len(tbl.rows))
			}
			var text strings.Builder
			r.write(&text, tbl)
			if !strings.HasPrefix(text.String(), "## "+r.name+". ") {
				t.Error(text.String())
			}
		})
	}
}
