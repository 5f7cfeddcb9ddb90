package main

import (
	"context"
	"math"
	"slices"
)

// P4 measures throughput, order and waits when several processes want the same key.
var fewProcessesRow = row{
	name:  "P4",
	title: "One key, 4 processes × 16 goroutines, empty critical section",
	about: `× best peer divides by the peer with the most locks in the same round. Waits are those of Lock. A
wait that the end of the turn cuts off counts with its length so far, so a worker without a lock
waits for the whole turn. Jain's index is over the counts of all 64 workers. Each critical section
checks a counter in memory that the processes share, and the fence if there is one: a violation is a
second worker inside, or a fence that did not grow. The contestants named after scripts have no
fence and only send latchkit's scripts: scripts in order sends them for each lock, and scripts
handed over sends them only when 10 ms of hand-offs inside the process are over.`,
	run: runFewProcesses,
}

func runFewProcesses(ctx context.Context, o order) (finding, error) {
	f, turns, err := contend(ctx, o, shape{processes: 4, workers: 16})
	if err != nil {
		return f, err
	}
	fair, handing := turns[latchkitFair], turns[latchkit]
	f.verdicts = []verdict{
		atLeast("P4 FIFO: throughput × best peer", 1, "%.2f", ratiosToBestPeer(turns, latchkitFair)),
		atLeast("P4 FIFO: Jain", 0.99, "%.3f", figuresOf(fair, turn.fairness)),
		atMost("P4 FIFO: wait p99 × the shortest of any peer", 0.12, "%.3f",
			ratios(figuresOf(fair, turn.waitP99), bestPeer(turns, math.Min, turn.waitP99))),
		atLeast("P4 hand-off: throughput × best peer", 20, "%.1f", ratiosToBestPeer(turns, latchkit)),
		atLeast("P4 hand-off: Jain", 0.98, "%.3f", figuresOf(handing, turn.fairness)),
		atMost("P4 hand-off: client commands per acquisition", 0.1, "%.3f", figuresOf(handing, turn.clientCommands)),
		noEvents("P4 violations", slices.Concat(fair, handing), turn.violations),
	}
	return f, nil
}
