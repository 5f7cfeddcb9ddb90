package main

import (
	"context"
	"errors"
)

// P20 measures what callers of different keys lose when they share stripes.
var stripesRow = row{
	name:  "P20",
	title: "Stripes: 4 processes × 16 goroutines, 4096 keys at random, 1 ms under the lock",
	about: `All contestants are latchkit's locker.New, with or without NewStriped. At most 64 callers
lock at once, nearly always different keys. Waits are those for the lock.`,
	run: runStripes,
}

func runStripes(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	own := stripesName(0)
	runners := contestantsNamed(own, stripesName(1024), stripesName(256), stripesName(64), stripesName(16))
	turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
		return shape{processes: 4, workers: 16, shared: 4096}.take(ctx, srv, c, o.turn)
	})
	if err != nil {
		return f, err
	}
	f.table = newTable("contestant", "locks/s", "× a lock for each key", "wait p50 ms", "p99 ms", "max ms", "client CPU µs", "server CPU µs")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianAndRange("%.2f", figureRatios(turns, c.name, own, turn.perSecond)),
			medianText("%.2f", figuresOf(t, turn.waitP50)), medianAndRange("%.1f", figuresOf(t, turn.waitP99)), medianAndRange("%.0f", figuresOf(t, turn.longestWait)),
			medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)))
	}
	f.verdicts = []verdict{atLeast("P20 1024 stripes: throughput × a lock for each key", 0.9, "%.2f", figureRatios(turns, stripesName(1024), own, turn.perSecond))}
	return f, nil
}
