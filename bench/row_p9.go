package main

import (
	"context"
	"errors"
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

func runReadWrite(ctx context.Context, o order) (f finding, err error) {
	on, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, on.close()) }()
	runners := field(latchkitReaders, latchkitLoneReaders, latchkit, "redislock 1ms", "rueidislock")
	turns, err := interleave(runners, o.rounds, func(c contestant) (lendingTurn, error) {
		return shelf{processes: 2, readers: 32, writers: 1}.take(ctx, on, c, o.turn)
	})
	if err != nil {
		return f, err
	}
	f.table = newTable("contestant", "reads/s", "writes/s", "client commands", "starved", "writer's wait p50 ms", "p99 ms", "max ms",
		"phases", "violations")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			spread("%.0f", each(t, lendingTurn.reads)), spread("%.0f", each(t, lendingTurn.writes)),
			middle("%.3f", each(t, lendingTurn.sent)), spread("%.0f", each(t, lendingTurn.starved)),
			middle("%.2f", each(t, lendingTurn.writeP50)), spread("%.1f", each(t, lendingTurn.writeP99)),
			spread("%.0f", each(t, lendingTurn.longestWait)), spread("%.0f", each(t, lendingTurn.mostPhases)),
			total(each(t, lendingTurn.violations)))
	}
	ours, lone := turns[latchkitReaders], turns[latchkitLoneReaders]
	both := append(append([]lendingTurn(nil), ours...), lone...)
	f.verdicts = []verdict{
		atLeast("P9 reads × one hold per reader", 10, "%.1f", ratios(each(ours, lendingTurn.reads), each(lone, lendingTurn.reads))),
		atMost("P9 phases that began while a writer waited", 1, "%.0f", each(both, lendingTurn.mostPhases)),
		none("P9 starved readers and writers", ours, lendingTurn.starved),
		none("P9 violations", both, lendingTurn.violations),
	}
	return f, nil
}
