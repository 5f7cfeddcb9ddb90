package main

import (
	"context"
	"errors"
)

// P20 measures what callers of different keys lose when they share stripes.
var stripesRow = row{
	name:  "P20",
	title: "Stripes: 4 processes × 16 goroutines, 4096 keys at random, 1 ms under the lock",
	about: `All contestants are latchkit's NewSingle, with or without NewStriped. At most 64 callers
lock at once, nearly always different keys. Waits are those for the lock.`,
	run: runStripes,
}

func runStripes(ctx context.Context, o order) (f finding, err error) {
	on, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, on.close()) }()
	own := stripesName(0)
	runners := field(own, stripesName(1024), stripesName(256), stripesName(64), stripesName(16))
	turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
		return shape{processes: 4, workers: 16, shared: 4096}.take(ctx, on, c, o.turn)
	})
	if err != nil {
		return f, err
	}
	f.table = newTable("contestant", "locks/s", "× a lock for each key", "wait p50 ms", "p99 ms", "max ms", "client CPU µs", "server CPU µs")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			spread("%.0f", each(t, turn.perSecond)), spread("%.2f", times(turns, c.name, own, turn.perSecond)),
			middle("%.2f", each(t, turn.waitP50)), spread("%.1f", each(t, turn.waitP99)), spread("%.0f", each(t, turn.longestWait)),
			middle("%.1f", each(t, turn.clientCPU)), middle("%.1f", each(t, turn.serverCPU)))
	}
	f.verdicts = []verdict{atLeast("P20 1024 stripes: throughput × a lock for each key", 0.9, "%.2f", times(turns, stripesName(1024), own, turn.perSecond))}
	return f, nil
}
