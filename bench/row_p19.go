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
	on, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, on.close()) }()
	names := []string{semaphore, semaphoreFair, asynqRate.name, "redislock 1ms", "redsync 1ms"}
	runners := field(names...)
	turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
		crowd := shape{processes: 4, workers: 50, permits: mostPermits, oneKey: true}
		if !c.admits {
			crowd.oneKey, crowd.shared = false, mostPermits
		}
		return crowd.take(ctx, on, c, o.turn)
	})
	if err != nil {
		return f, err
	}
	f.table = newTable("contestant", "permits/s", "client commands", "Jain", "starved", "wait p50 ms", "p99 ms", "max ms",
		"client CPU µs", "server CPU µs", "violations")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			spread("%.0f", each(t, turn.perSecond)), middle("%.2f", each(t, turn.sent)),
			spread("%.2f", each(t, turn.fairness)), spread("%.0f", each(t, turn.starved)),
			middle("%.2f", each(t, turn.waitP50)), spread("%.1f", each(t, turn.waitP99)), spread("%.0f", each(t, turn.longestWait)),
			middle("%.1f", each(t, turn.clientCPU)), middle("%.1f", each(t, turn.serverCPU)), total(each(t, turn.violations)))
	}
	f.verdicts = []verdict{none("P19 violations", slices.Concat(turns[semaphore], turns[semaphoreFair]), turn.violations)}
	return f, nil
}
