package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// P2 measures how many uncontended locks a process can take.
var manyKeysRow = row{
	name:  "P2",
	title: "Uncontended throughput, 8, 64 and 256 goroutines, a key each",
	about: `One client process. floor-ap is the floor over go-redis's AutoPipeline; floor-rueidis is the floor
over rueidis. In both, and in rueidislock, all goroutines share connections. All other clients have
go-redis's defaults, and latchkit's ContextTimeoutEnabled. latchkit's leases have a fence and are
renewed. The contestant scripts only sends latchkit's scripts; scripts together sends the scripts
that take or release many locks at once. The longest wait shows a worker that hangs: its wait then
lasts until the end of the turn.`,
	run: runManyKeys,
}

func runManyKeys(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	const floor, rueidis, redislock, redsync = "floor", "rueidislock", "redislock 100ms", "redsync"
	f.table = crowdTable()
	for _, workers := range []int{8, 64, 256} {
		runners := contestantsNamed(floor, latchkit, latchkitOnRueidis, redislock, redsync, rueidis)
		if workers == 64 {
			runners = slices.Insert(runners, 1, contestantsNamed("floor-ap", "floor-rueidis")...)
		}
		if workers == 8 {
			runners = append(runners, contestantsNamed(scripts)...)
		} else {
			runners = append(runners, contestantsNamed(scriptsTogether)...)
		}
		busy := shape{processes: 1, workers: workers}
		turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
			return busy.take(ctx, srv, c, o.turn)
		})
		if err != nil {
			return f, err
		}
		addCrowd(&f.table, runners, turns, workers)
		switch workers {
		case 8:
			f.verdicts = append(f.verdicts, atMost("P2 8 goroutines: time × redislock", 1.2, "%.2f", figureRatios(turns, latchkit, redislock, turn.microsEach)))
		case 64:
			f.verdicts = append(f.verdicts,
				atLeast("P2 64 goroutines: throughput × rueidislock", 1, "%.2f", figureRatios(turns, latchkit, rueidis, turn.perSecond)),
				atMost("P2 64 goroutines: client CPU µs", 9, "%.1f", figuresOf(turns[latchkit], turn.clientCPU)))
		default:
			best := perRound(math.Max, figuresOf(turns[redislock], turn.perSecond), figuresOf(turns[redsync], turn.perSecond), figuresOf(turns[rueidis], turn.perSecond))
			f.verdicts = append(f.verdicts, atLeast("P2 256 goroutines: throughput × best peer", 1, "%.2f",
				ratios(figuresOf(turns[latchkit], turn.perSecond), best)))
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
	return newTable("contestant", "goroutines", "locks/s", "× floor", "client commands", "server calls",
		"client CPU µs", "server CPU µs", "longest wait ms")
}

// addCrowd adds a line for each of the runners to tbl. The first runner is the floor.
func addCrowd(tbl *table, runners []contestant, turns map[string][]turn, workers int) {
	for _, c := range runners {
		t := turns[c.name]
		tbl.add(c.name, fmt.Sprint(workers),
			medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianAndRange("%.2f", figureRatios(turns, c.name, runners[0].name, turn.perSecond)),
			medianText("%.2f", figuresOf(t, turn.clientCommands)), medianText("%.2f", figuresOf(t, turn.executed)),
			medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)),
			medianAndRange("%.0f", figuresOf(t, turn.longestWait)))
	}
}
