package main

import (
	"errors"
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
			f, err := r.run(t.Context(), brief)
			if err != nil {
				t.Fatal(err)
			}
			if len(f.table.rows) < 4 {
				t.Errorf("only %d contestants", len(f.table.rows))
			}
			for _, v := range f.verdicts {
				if !strings.HasPrefix(v.target, r.name+" ") {
					t.Errorf("%q does not say that it is about %s", v.target, r.name)
				}
				if must := strings.Contains(v.target, "violations") || strings.Contains(v.target, "lost"); must && !v.reached {
					t.Errorf("%s: %s", v.target, v.got)
				}
			}
			var text strings.Builder
			r.write(&text, f)
			if !strings.HasPrefix(text.String(), "## "+r.name+". ") {
				t.Error(text.String())
			}
		})
	}
}

func TestChoose(t *testing.T) {
	if got, err := choose(false, "p4, P1"); err != nil || len(got) != 2 || got[0].name != "P4" || got[1].name != "P1" {
		t.Errorf("P4 and P1 are %v, %v", got, err)
	}
	for _, r := range rows {
		if got, err := choose(false, r.name); err != nil || len(got) != 1 || got[0].name != r.name {
			t.Errorf("the row %s cannot be chosen: %v", r.name, err)
		}
	}
	if got, err := choose(true, ""); err != nil || len(got) != len(rows) {
		t.Errorf("all are %d, %v", len(got), err)
	}
	if _, err := choose(false, ""); err == nil {
		t.Error("a run without rows was accepted")
	}
}

func TestInterleave(t *testing.T) {
	a, b := contestant{name: "a"}, contestant{name: "b"}
	var order string
	turns, err := interleave([]contestant{a, b}, 3, func(c contestant) (int, error) {
		order += c.name
		return len(order), nil
	})
	if err != nil || order != "ababab" {
		t.Errorf("order %s, %v", order, err)
	}
	if got := medianAndRange("%.0f", figuresOf(turns["b"], func(n int) float64 { return float64(n) })); got != "4 [2–6]" {
		t.Errorf("the turns of b are %s", got)
	}
	_, err = interleave([]contestant{a, b}, 1, func(contestant) (int, error) { return 0, errors.ErrUnsupported })
	if !errors.Is(err, errors.ErrUnsupported) || !strings.HasPrefix(err.Error(), "a: ") {
		t.Errorf("err = %v, want one that names who failed", err)
	}
}
