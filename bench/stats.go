package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// median returns the sample in the middle, or the mean of the two samples in the middle.
func median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// percentile returns the smallest sample s such that at least p % of the samples are at most s.
// So the result is always a measured value.
func percentile[T cmp.Ordered](samples []T, p float64) T {
	if len(samples) == 0 {
		var none T
		return none
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[rank(p, len(sorted))-1]
}

// rank returns the rank of the percentile p among n samples, counted from 1.
func rank(p float64, n int) int {
	return min(max(int(math.Ceil(p/100*float64(n))), 1), n)
}

// jain returns Jain's index of fairness. The index is 1 if all n values are equal, and 1/n if
// only one value is not 0.
func jain(counts []int) float64 {
	var sum, squares float64
	for _, c := range counts {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	if squares == 0 {
		return math.NaN() // the index is not defined, because all counts are 0
	}
	return sum * sum / (float64(len(counts)) * squares)
}

// ratios divides each sample by the reference of the same round.
func ratios(samples, reference []float64) []float64 {
	quotients := make([]float64, min(len(samples), len(reference)))
	for i := range quotients {
		quotients[i] = samples[i] / reference[i]
	}
	return quotients
}

// perRound returns, for each round, the best figure of several contestants, as the function
// choose decides.
func perRound(choose func(a, b float64) float64, contestants ...[]float64) []float64 {
	best := slices.Clone(contestants[0])
	for _, samples := range contestants[1:] {
		for round, s := range samples {
			best[round] = choose(best[round], s)
		}
	}
	return best
}

// medianAndRange returns the median of samples as text, with the range in brackets. format is the
// format of a number.
func medianAndRange(format string, samples []float64) string {
	middle := figure(format, median(samples))
	if middle == noFigure {
		return noFigure
	}
	return fmt.Sprintf("%s [%s–%s]", middle, figure(format, slices.Min(samples)), figure(format, slices.Max(samples)))
}

// noFigure is the text that a table shows for a missing figure. For example, the cost of one
// acquisition is missing if the workers never got the lock.
const noFigure = "–"

func figure(format string, f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return noFigure
	}
	return fmt.Sprintf(format, f)
}
