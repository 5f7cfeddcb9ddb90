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
	about: `One client process. p50 and p99 are those of an acquire and its release together. floor-ap is the
floor over go-redis's AutoPipeline; floor-rueidis is the floor over rueidis. In both, and in
rueidislock, all goroutines share connections. All other clients have go-redis's defaults, but the
client of latchkit is made by Open. latchkit's leases have a fence and are renewed. The contestant
scripts only sends latchkit's scripts; scripts together sends the scripts that take or release many
locks at once. The longest wait shows a worker that hangs: its wait
then lasts until the end of the turn.`,
	run: runManyKeys,
}

// crowds are the numbers of goroutines in the rows about uncontended locks.
var crowds = []int{1, 2, 8, 32, 64, 256}

// leastOfBest is the target of P2: the throughput as a part of the best peer's, by goroutines.
var leastOfBest = map[int]float64{2: 0.95, 8: 0.85, 32: 1.1, 64: 1.3, 256: 1.8}

func runManyKeys(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	const floor, rueidis, redislock, redsync = "floor", "rueidislock", "redislock 100ms", "redsync"
	f.table = crowdTable()
	for _, workers := range crowds {
		runners := contestantsNamed(floor, "floor-ap", latchkit, latchkitPlain, redislock, redsync, rueidis)
		switch {
		case workers == 1:
		case workers <= 8:
			runners = append(runners, contestantsNamed(scripts)...)
		default:
			runners = append(runners, contestantsNamed("floor-rueidis", scriptsTogether)...)
		}
		busy := shape{processes: 1, workers: workers}
		turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
			return busy.take(ctx, srv, c, o.turn)
		})
		if err != nil {
			return f, err
		}
		addCrowd(&f.table, runners, turns, workers)
		about := "P2 " + goroutines(workers) + ": "
		if workers == 1 {
			f.verdicts = append(f.verdicts, atMost(about+"time × redislock", 1.15, "%.2f", figureRatios(turns, latchkit, redislock, turn.microsEach)))
			continue
		}
		best := perRound(math.Max, figuresOf(turns[redislock], turn.perSecond), figuresOf(turns[redsync], turn.perSecond), figuresOf(turns[rueidis], turn.perSecond))
		f.verdicts = append(f.verdicts, atLeast(about+"throughput × best peer", leastOfBest[workers], "%.2f",
			ratios(figuresOf(turns[latchkit], turn.perSecond), best)))
		if workers == 64 {
			f.verdicts = append(f.verdicts, atMost(about+"client CPU µs", 6, "%.1f", figuresOf(turns[latchkit], turn.clientCPU)))
		}
	}
	return f, nil
}

func goroutines(n int) string {
	if n == 1 {
		return "1 goroutine"
	}
	return fmt.Sprint(n, " goroutines")
}

// crowdTable makes the table of a row about many goroutines.
func crowdTable() table {
	return newTable("contestant", "goroutines", "locks/s", "× floor", "p50 µs", "p99 µs", "client commands", "server calls",
		"client CPU µs", "server CPU µs", "longest wait ms")
}

// addCrowd adds a line for each of the runners to tbl. The first runner is the floor.
func addCrowd(tbl *table, runners []contestant, turns map[string][]turn, workers int) {
	for _, c := range runners {
		t := turns[c.name]
		tbl.add(c.name, fmt.Sprint(workers),
			medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianAndRange("%.2f", figureRatios(turns, c.name, runners[0].name, turn.perSecond)),
			medianText("%.0f", figuresOf(t, turn.wholeP50)), medianText("%.0f", figuresOf(t, turn.wholeP99)),
			medianText("%.2f", figuresOf(t, turn.clientCommands)), medianText("%.2f", figuresOf(t, turn.executed)),
			medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)),
			medianAndRange("%.0f", figuresOf(t, turn.longestWait)))
	}
}
