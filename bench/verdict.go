package main

import (
	"fmt"
	"math"
	"slices"
)

// verdict shows whether the median of some figures has reached a target.
type verdict struct {
	target, got string
	reached     bool
}

func atMost(what string, limit float64, format string, got []float64) verdict {
	return verdict{fmt.Sprintf("%s ≤ %v", what, limit), spread(format, got), measured(got) && median(got) <= limit}
}

func atLeast(what string, limit float64, format string, got []float64) verdict {
	return verdict{fmt.Sprintf("%s ≥ %v", what, limit), spread(format, got), measured(got) && median(got) >= limit}
}

// measured returns false if a turn has no figure, for example because there was no acquisition.
func measured(got []float64) bool { return len(got) > 0 && !slices.ContainsFunc(got, math.IsNaN) }

// none returns the verdict on events that must not happen in any turn.
func none[T any](what string, turns []T, count func(T) float64) verdict {
	var sum float64
	for _, n := range each(turns, count) {
		sum += n
	}
	return verdict{what + " = 0", fmt.Sprint(math.Round(sum)), sum == 0}
}

func (v verdict) String() string {
	if v.reached {
		return "reached"
	}
	return "**missed**"
}

func verdictTable(verdicts []verdict) table {
	t := table{head: []string{"target", "got", "verdict"}}
	for _, v := range verdicts {
		t.add(v.target, v.got, v.String())
	}
	return t
}
