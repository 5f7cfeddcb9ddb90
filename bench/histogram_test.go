package main

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	t.Run("its percentiles are those of the samples, within a bucket", func(t *testing.T) {
		var h histogram
		var samples []time.Duration
		for range 10_000 {
			d := time.Duration(rand.ExpFloat64() * float64(time.Millisecond))
			samples = append(samples, d)
			h.add(d)
		}
		for _, p := range []float64{0, 1, 50, 90, 99, 99.9, 100} {
			got, want := h.percentile(p), percentile(samples, p)
			if got < want || got > want+want/subBuckets {
				t.Errorf("p%v is %v, want %v or little more", p, got, want)
			}
		}
		if got, want := h.percentile(100), percentile(samples, 100); got != want {
			t.Errorf("the largest is %v, want %v", got, want)
		}
	})

	t.Run("parts that went through a pipe make a whole", func(t *testing.T) {
		var all, merged histogram
		for range 3 {
			var part, arrived histogram
			for range 1000 {
				d := rand.N(time.Second)
				all.add(d)
				part.add(d)
			}
			text, err := json.Marshal(part)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &arrived); err != nil {
				t.Fatal(err)
			}
			merged.merge(arrived)
		}
		for _, p := range []float64{1, 50, 99, 100} {
			if merged.percentile(p) != all.percentile(p) {
				t.Errorf("p%v is %v, want %v", p, merged.percentile(p), all.percentile(p))
			}
		}
		if merged.total != 3000 || merged.max != all.max {
			t.Errorf("%d samples up to %v, want 3000 up to %v", merged.total, merged.max, all.max)
		}
	})
}
