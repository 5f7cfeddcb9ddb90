package main

import (
	"context"
	"errors"
)

// P2: how many locks a process can take that nobody else wants.
var manyKeysRow = row{
	name:  "P2",
	title: "Uncontended throughput, 64 goroutines, a key each",
	about: `One client process. floor-ap is the floor over go-redis's AutoPipeline, floor-rueidis over rueidis:
connections that all goroutines share, as rueidislock's are. All other clients have go-redis's
defaults. latchkit's leases have a fence and are renewed. The longest wait shows a worker that
hangs: its turn's end is counted as the end of its wait.`,
	run: runManyKeys,
}

func runManyKeys(ctx context.Context, o order) (f finding, err error) {
	on, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, on.close()) }()

	const floor, floorPiped, rueidis = "floor", "floor-ap", "rueidislock"
	runners := field(floor, floorPiped, "floor-rueidis", latchkit,
		"redislock 100ms", "redsync", rueidis, "rueidislock zero options")
	busy := shape{processes: 1, workers: 64}
	turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
		return busy.take(ctx, on, c, o.turn)
	})
	if err != nil {
		return f, err
	}

	times := func(name, reference string) []float64 {
		return ratios(each(turns[name], turn.perSecond), each(turns[reference], turn.perSecond))
	}
	f.table = newTable("contestant", "locks/s", "× floor", "× floor-ap", "× rueidislock", "client commands", "server calls",
		"client CPU µs", "server CPU µs", "longest wait ms")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			spread("%.0f", each(t, turn.perSecond)),
			spread("%.2f", times(c.name, floor)), spread("%.2f", times(c.name, floorPiped)), spread("%.2f", times(c.name, rueidis)),
			middle("%.2f", each(t, turn.sent)), middle("%.2f", each(t, turn.executed)),
			middle("%.1f", each(t, turn.clientCPU)), middle("%.1f", each(t, turn.serverCPU)),
			spread("%.0f", each(t, turn.longestWait)))
	}
	f.verdicts = []verdict{
		atLeast("P2 throughput × rueidislock", 1.3, "%.2f", times(latchkit, rueidis)),
		atLeast("P2 throughput × floor", 1.8, "%.2f", times(latchkit, floor)),
		atLeast("P2 throughput × floor-ap", 0.75, "%.2f", times(latchkit, floorPiped)),
	}
	return f, nil
}
