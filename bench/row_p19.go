package main

import (
	"context"
	"errors"
	"slices"
)

// P19 measures a semaphore with fewer permits than callers.
var semaphoreRow = row{
	name:  "P19",
	title: "A semaphore of 50: 4 processes × 50 goroutines, 1 ms under a permit",
	about: `No peer has a semaphore with a queue. The semaphore of asynq's contrib module (x/rate) has no queue:
each caller, which must be a task of asynq, asks again after 1 ms here. It counts by the clients'
clocks in whole seconds, and renews nothing. The callers of redislock and redsync have one lock of
50, which is no semaphore: each caller picks one of 50 keys at random, and waits for that key
although others are free. A violation is a 51st worker inside.`,
	run: runSemaphore,
}

func runSemaphore(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	names := []string{semaphore, semaphoreFair, asynqRate.name, "redislock 1ms", "redsync 1ms"}
	runners := contestantsNamed(names...)
	turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
		crowd := shape{processes: 4, workers: 50, permits: mostPermits, oneKey: true}
		if !c.admits {
			crowd.oneKey, crowd.shared = false, mostPermits
		}
		return crowd.take(ctx, srv, c, o.turn)
	})
	if err != nil {
		return f, err
	}
	f.table = newTable("contestant", "permits/s", "client commands", "Jain", "starved", "wait p50 ms", "p99 ms", "max ms",
		"client CPU µs", "server CPU µs", "violations")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianText("%.2f", figuresOf(t, turn.clientCommands)),
			medianAndRange("%.2f", figuresOf(t, turn.fairness)), medianAndRange("%.0f", figuresOf(t, turn.starved)),
			medianText("%.2f", figuresOf(t, turn.waitP50)), medianAndRange("%.1f", figuresOf(t, turn.waitP99)), medianAndRange("%.0f", figuresOf(t, turn.longestWait)),
			medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)), sumText(figuresOf(t, turn.violations)))
	}
	f.verdicts = []verdict{noEvents("P19 violations", slices.Concat(turns[semaphore], turns[semaphoreFair]), turn.violations)}
	return f, nil
}
