package main

import (
	"context"
	"errors"
	"time"
)

// P1u measures an uncontended lock while the kernel chooses the processors of client and server.
var unpinnedRow = row{
	name:  "P1u",
	title: "Uncontended acquire and release, one goroutine, not pinned",
	about: `As P1, but the kernel chooses the processors. The time then depends on whether client and
server share a processor; client CPU varies less.`,
	run: runUnpinned,
}

func runUnpinned(ctx context.Context, o order) (finding, error) {
	const floor, redislock = "floor", "redislock 100ms"
	runners := contestantsNamed(floor, latchkit, latchkitPlain, redislock, "redsync", "rueidislock")
	f, turns, err := runLone(ctx, runners, o.aloneRounds, o.turn/2, shape{processes: 1, workers: 1})
	f.verdicts = []verdict{
		atMost("P1u client CPU × floor", 1.2, "%.2f", figureRatios(turns, latchkit, floor, turn.clientCPU)),
		atMost("P1u time × redislock", 1.15, "%.2f", figureRatios(turns, latchkit, redislock, turn.microsEach)),
	}
	return f, err
}

// runLone runs the turns of all runners, with one goroutine each.
func runLone(ctx context.Context, runners []contestant, rounds int, length time.Duration, alone shape) (f finding, turns map[string][]turn, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, nil, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	turns, err = interleave(runners, rounds, func(c contestant) (turn, error) { return alone.take(ctx, srv, c, length) })
	if err != nil {
		return f, nil, err
	}
	f.table = loneTable(runners, turns)
	return f, turns, nil
}
