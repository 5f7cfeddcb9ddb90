package main

import (
	"context"
	"errors"
	"slices"
)

// P9 measures whether readers slow each other down, and whether they slow a writer down.
var readWriteRow = row{
	name:  "P9",
	title: "Read-write, one key: 64 readers and a writer in 2 processes, empty critical section",
	about: `Readers read all the time; the writer rests for 1 ms between two writes. A contestant
without a read-write lock gives the key to each reader alone. A phase is the time in which readers
hold the key. All readers of a phase have the same fence, so a larger fence shows that a new phase
has begun. "Phases" is the largest number of phases that began while a writer waited: one phase may
begin while the writer's request is in flight. A wait that the end of the turn cuts off counts with
its length so far. A violation is a writer beside another holder, or a fence that did not grow.`,
	run: runReadWrite,
}

func runReadWrite(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	runners := contestantsNamed(latchkitReaders, latchkitLoneReaders, latchkit, "redislock 1ms", "rueidislock")
	turns, err := interleave(runners, o.rounds, func(c contestant) (lendingTurn, error) {
		return shelf{processes: 2, readers: 32, writers: 1}.take(ctx, srv, c, o.turn)
	})
	if err != nil {
		return tbl, err
	}
	tbl = newTable("contestant", "reads/s", "writes/s", "client commands", "starved", "writer's wait p50 ms", "p99 ms", "max ms",
		"phases", "violations")
	for _, c := range runners {
		t := turns[c.name]
		tbl.add(c.name,
			medianAndRange("%.0f", figuresOf(t, lendingTurn.reads)), medianAndRange("%.0f", figuresOf(t, lendingTurn.writes)),
			medianText("%.3f", figuresOf(t, lendingTurn.clientCommands)), medianAndRange("%.0f", figuresOf(t, lendingTurn.starved)),
			medianText("%.2f", figuresOf(t, lendingTurn.writeP50)), medianAndRange("%.1f", figuresOf(t, lendingTurn.writeP99)),
			medianAndRange("%.0f", figuresOf(t, lendingTurn.longestWait)), medianAndRange("%.0f", figuresOf(t, lendingTurn.mostPhases)),
			sumText(figuresOf(t, lendingTurn.violations)))
	}
	ours, lone := turns[latchkitReaders], turns[latchkitLoneReaders]
	return tbl, none("P9 violations", slices.Concat(ours, lone), lendingTurn.violations)
}
