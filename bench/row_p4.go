package main

import (
	"context"
	"errors"
	"slices"
)

// P4 measures throughput, order and waits when several processes want the same key.
var contendedRow = row{
	name:  "P4",
	title: "One key, 4 processes × 16 goroutines, empty critical section",
	about: `× best peer divides by the peer with the most locks in the same round. Waits are those of Lock. A
wait that the end of the turn cuts off counts with its length so far, so a worker without a lock
waits for the whole turn. Jain's index is over the counts of all 64 workers. Each critical section
checks a counter in memory that the processes share, and the fence if there is one: a violation is a
second worker inside, or a fence that did not grow.`,
	run: runContended,
}

// rivals are the contestants from other libraries. Each rival waits in a different way.
var rivals = []string{"redislock 100ms", "redislock 1ms", "redsync", "rueidislock"}

func runContended(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	crowd := shape{processes: 4, workers: 16, oneKey: true}
	runners := contestantsNamed(append([]string{latchkitFair, latchkit}, rivals...)...)
	turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) { return crowd.take(ctx, srv, c, o.turn) })
	if err != nil {
		return tbl, err
	}
	tbl = newTable("contestant", "locks/s", "× best peer", "client commands", "Jain", "starved",
		"wait p50 ms", "p99 ms", "max ms", "client CPU µs", "server CPU µs", "violations")
	for _, c := range runners {
		t := turns[c.name]
		tbl.add(c.name,
			medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianAndRange("%.2f", ratiosToBest(turns, c.name, rivals)),
			medianText("%.2f", figuresOf(t, turn.clientCommands)),
			medianAndRange("%.2f", figuresOf(t, turn.fairness)), medianAndRange("%.0f", figuresOf(t, turn.starved)),
			medianText("%.2f", figuresOf(t, turn.waitP50)), medianAndRange("%.1f", figuresOf(t, turn.waitP99)), medianAndRange("%.0f", figuresOf(t, turn.longestWait)),
			medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)),
			sumText(figuresOf(t, turn.violations)))
	}
	return tbl, none("P4 violations", slices.Concat(turns[latchkit], turns[latchkitFair]), turn.violations)
}
