package main

import (
	"context"
	"slices"
)

// P5 measures throughput, order and waits when the goroutines of one process want the same key.
var oneProcessRow = row{
	name:  "P5",
	title: "One key, 128 goroutines of one process, empty critical section",
	about: `The figures have the same meaning as in P4.`,
	run:   runOneProcess,
}

func runOneProcess(ctx context.Context, o order) (finding, error) {
	f, turns, err := contend(ctx, o, shape{processes: 1, workers: 128})
	if err != nil {
		return f, err
	}
	both := slices.Concat(turns[latchkitFair], turns[latchkit])
	f.verdicts = []verdict{
		noEvents("P5 starved workers", both, turn.starved),
		atMost("P5 FIFO: client commands per acquisition", 2.1, "%.2f", figuresOf(turns[latchkitFair], turn.clientCommands)),
		atMost("P5 hand-off: client commands per acquisition", 0.1, "%.3f", figuresOf(turns[latchkit], turn.clientCommands)),
		noEvents("P5 violations", both, turn.violations),
	}
	return f, nil
}
