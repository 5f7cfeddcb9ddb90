package main

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 9, 2}, 3},
	} {
		if got := median(c.samples); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.samples, got, c.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for p, want := range map[float64]int{0: 1, 1: 1, 50: 50, 99: 99, 99.5: 100, 100: 100} {
		if got := percentile(hundred, p); got != want {
			t.Errorf("%v %% of 1 to 100: %d, want %d", p, got, want)
		}
	}
	if got := percentile([]int{7, 3}, 50); got != 3 {
		t.Errorf("half of two samples: %d, want one that was measured", got)
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		counts []int
		want   float64
	}{
		{[]int{5, 5, 5, 5}, 1},
		{[]int{8, 0, 0, 0}, 0.25},
		{[]int{1, 2, 3}, 36.0 / 42},
	} {
		if got := jain(c.counts); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("Jain's index of %v is %v, want %v", c.counts, got, c.want)
		}
	}
	if got := jain([]int{0, 0}); !math.IsNaN(got) {
		t.Errorf("Jain's index of nothing is %v", got)
	}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	a, b := []float64{10, 40, 90}, []float64{1, 2, 3}
	if got := medianAndRange("%.0f", ratios(a, b)); got != "20 [10–30]" {
		t.Errorf("a / b is %s", got)
	}
	if got := medianAndRange("%.0f", perRound(math.Max, b, []float64{5, 1, 3})); got != "3 [2–5]" {
		t.Errorf("the best of each round is %s", got)
	}
}

func TestSpreadOfWhatIsNoNumber(t *testing.T) {
	for want, samples := range map[string][]float64{
		"–":           {math.NaN(), math.Inf(1)},
		"1.0 [0.5––]": {0.5, 1, math.Inf(1)},
	} {
		if got := medianAndRange("%.1f", samples); got != want {
			t.Errorf("%v is %q, want %q", samples, got, want)
		}
	}
}

func TestWhatMustNotHappenFailsItsRow(t *testing.T) {
	count := func(n float64) float64 { return n }
	if err := none("violations", []float64{0, 0}, count); err != nil {
		t.Error(err)
	}
	if err := none("violations", []float64{0, 1}, count); err == nil {
		t.Error("a violation was no error")
	}
}
