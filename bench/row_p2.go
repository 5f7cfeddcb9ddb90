package main

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// P2 measures how many uncontended locks a process can take.
var manyKeysRow = row{
	name:  "P2",
	title: "Uncontended throughput, 1 to 256 goroutines, a key each",
	about: `One client process. × best peer divides by the peer with the most locks in the same round. p50 and
p99 are those of an acquire and its release together. All clients have go-redis's defaults, but
"latchkit" is made by Open. latchkit's leases have a fence and are renewed. The longest wait shows a
worker that hangs: its wait then lasts until the end of the turn.`,
	run: runManyKeys,
}

// crowds are the numbers of goroutines in the rows about uncontended locks.
var crowds = []int{1, 2, 8, 32, 64, 256}

func runManyKeys(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	tbl = newTable("contestant", "goroutines", "locks/s", "× best peer", "× floor", "p50 µs", "p99 µs", "client CPU µs", "server CPU µs", "longest wait ms")
	peers := []string{"redislock 100ms", "redsync", "rueidislock"}
	runners := contestantsNamed(append([]string{"floor", latchkit, latchkitPlain}, peers...)...)
	for _, workers := range crowds {
		busy := shape{processes: 1, workers: workers}
		turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) { return busy.take(ctx, srv, c, o.turn) })
		if err != nil {
			return tbl, err
		}
		for _, c := range runners {
			t := turns[c.name]
			tbl.add(c.name, fmt.Sprint(workers), medianAndRange("%.0f", figuresOf(t, turn.perSecond)),
				medianAndRange("%.2f", ratiosToBest(turns, c.name, peers)), medianText("%.2f", figureRatios(turns, c.name, "floor", turn.perSecond)),
				medianText("%.0f", figuresOf(t, turn.wholeP50)), medianText("%.0f", figuresOf(t, turn.wholeP99)),
				medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)),
				medianText("%.0f", figuresOf(t, turn.longestWait)))
		}
	}
	return tbl, nil
}

// ratiosToBest returns, for each round, the throughput of the named contestant divided by the
// largest throughput of a peer in that round.
func ratiosToBest(turns map[string][]turn, name string, peers []string) []float64 {
	var all [][]float64
	for _, p := range peers {
		all = append(all, figuresOf(turns[p], turn.perSecond))
	}
	return ratios(figuresOf(turns[name], turn.perSecond), perRound(math.Max, all...))
}
