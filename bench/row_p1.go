package main

import (
	"context"
	"errors"
)

// P1 measures what an uncontended lock costs.
var uncontendedRow = row{
	name:  "P1",
	title: "Uncontended acquire and release, one goroutine",
	about: `Client and server share one processor. On several processors, a round trip has one of two speeds,
depending on whether client and server share a processor: P2 has a lone goroutine that is not
pinned. On a machine with other load, the sum of client CPU and server CPU is a better figure than
the time. Allocations are those of the whole client process. The contestant scripts only sends
latchkit's scripts. latchkit NewScriptless has no fence and no queue.`,
	run: runUncontended,
}

func runUncontended(ctx context.Context, o order) (tbl table, err error) {
	var srv server
	launch := func() (err error) { srv, err = launchServer(); return err }
	if err := runPinned(launch); err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	const floor = "floor"
	runners := contestantsNamed(floor, latchkit, latchkitScriptless, "redislock 100ms", "redsync", "rueidislock", scripts)
	alone := shape{processes: 1, workers: 1, onOneCPU: true}
	turns, err := interleave(runners, o.aloneRounds, func(c contestant) (turn, error) {
		return alone.take(ctx, srv, c, o.turn/2)
	})
	if err != nil {
		return tbl, err
	}

	return loneTable(runners, turns), nil
}

// figureRatios returns, for each round, the figure of the contestant name divided by the figure of
// the contestant reference.
func figureRatios(turns map[string][]turn, name, reference string, figure func(turn) float64) []float64 {
	return ratios(figuresOf(turns[name], figure), figuresOf(turns[reference], figure))
}

// loneTable makes the table of a row about one goroutine. The first of the runners is the floor.
func loneTable(runners []contestant, turns map[string][]turn) table {
	floor := runners[0].name
	all := newTable("contestant", "µs", "× floor", "CPU × floor", "client CPU × floor", "allocs", "client commands", "server calls",
		"client CPU µs", "server CPU µs")
	for _, c := range runners {
		t := turns[c.name]
		all.add(c.name,
			medianAndRange("%.1f", figuresOf(t, turn.microsEach)), medianAndRange("%.2f", figureRatios(turns, c.name, floor, turn.microsEach)),
			medianAndRange("%.2f", figureRatios(turns, c.name, floor, turn.allCPU)), medianAndRange("%.2f", figureRatios(turns, c.name, floor, turn.clientCPU)),
			medianText("%.0f", figuresOf(t, turn.allocs)),
			medianText("%.2f", figuresOf(t, turn.clientCommands)), medianText("%.2f", figuresOf(t, turn.executed)),
			medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)))
	}
	return all
}
