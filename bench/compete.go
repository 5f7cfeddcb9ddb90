package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// result is what a contestant did: one sample for each of its turns.
type result struct {
	contestant
	perOp  []time.Duration
	allocs []float64
}

// compete lets all take turns, after one that does not count: it opens
// connections and loads scripts.
func compete(ctx context.Context, field []contestant, rounds int, turn time.Duration) ([]result, error) {
	results := make([]result, len(field))
	for i, c := range field {
		results[i].contestant = c
	}
	for round := range rounds + 1 {
		for i, c := range field {
			perOp, allocs, err := measure(ctx, c, turn)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			if round > 0 {
				results[i].perOp = append(results[i].perOp, perOp)
				results[i].allocs = append(results[i].allocs, allocs)
			}
		}
	}
	return results, nil
}

// measure is one turn.
func measure(ctx context.Context, c contestant, turn time.Duration) (perOp time.Duration, allocs float64, err error) {
	runtime.GC() // nobody pays for what the one before left behind
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var ops int
	var elapsed time.Duration
	for start := time.Now(); elapsed < turn; elapsed = time.Since(start) {
		if err := c.once(ctx); err != nil {
			return 0, 0, err
		}
		ops++
	}
	runtime.ReadMemStats(&after)
	return elapsed / time.Duration(ops), float64(after.Mallocs-before.Mallocs) / float64(ops), nil
}
