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

// atMost returns the verdict whether the median of got is at most limit.
func atMost(label string, limit float64, format string, got []float64) verdict {
	return verdict{fmt.Sprintf("%s ≤ %v", label, limit), medianAndRange(format, got), hasFigures(got) && median(got) <= limit}
}

// atLeast returns the verdict whether the median of got is at least limit.
func atLeast(label string, limit float64, format string, got []float64) verdict {
	return verdict{fmt.Sprintf("%s ≥ %v", label, limit), medianAndRange(format, got), hasFigures(got) && median(got) >= limit}
}

// hasFigures reports whether all figures are numbers. A turn in which nothing was acquired may
// have NaN instead of a figure.
func hasFigures(got []float64) bool { return len(got) > 0 && !slices.ContainsFunc(got, math.IsNaN) }

// noEvents returns the verdict on events that must not happen in any turn, such as violations.
// The function count returns how many such events a turn had.
func noEvents[T any](label string, turns []T, count func(T) float64) verdict {
	var sum float64
	for _, n := range figuresOf(turns, count) {
		sum += n
	}
	return verdict{label + " = 0", fmt.Sprint(math.Round(sum)), sum == 0}
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
