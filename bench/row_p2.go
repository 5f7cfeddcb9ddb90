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
	on, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, on.close()) }()

	const floor, rueidis, redislock, redsync = "floor", "rueidislock", "redislock 100ms", "redsync"
	f.table = crowdTable()
	for _, workers := range []int{8, 64, 256} {
		runners := field(floor, latchkit, latchkitOnRueidis, redislock, redsync, rueidis)
		if workers == 64 {
			runners = slices.Insert(runners, 1, field("floor-ap", "floor-rueidis")...)
		}
		if workers == 8 {
			runners = append(runners, field(scripts)...)
		} else {
			runners = append(runners, field(scriptsTogether)...)
		}
		busy := shape{processes: 1, workers: workers}
		turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
			return busy.take(ctx, on, c, o.turn)
		})
		if err != nil {
			return f, err
		}
		addCrowd(&f.table, runners, turns, workers)
		switch workers {
		case 8:
			f.verdicts = append(f.verdicts, atMost("P2 8 goroutines: time × redislock", 1.2, "%.2f", times(turns, latchkit, redislock, turn.microsEach)))
		case 64:
			f.verdicts = append(f.verdicts,
				atLeast("P2 64 goroutines: throughput × rueidislock", 1, "%.2f", times(turns, latchkit, rueidis, turn.perSecond)),
				atMost("P2 64 goroutines: client CPU µs", 9, "%.1f", each(turns[latchkit], turn.clientCPU)))
		default:
			best := perRound(math.Max, each(turns[redislock], turn.perSecond), each(turns[redsync], turn.perSecond), each(turns[rueidis], turn.perSecond))
			f.verdicts = append(f.verdicts, atLeast("P2 256 goroutines: throughput × best peer", 1, "%.2f",
				ratios(each(turns[latchkit], turn.perSecond), best)))
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

// addCrowd adds the runners to the table. The first runner is the floor.
func addCrowd(to *table, runners []contestant, turns map[string][]turn, workers int) {
	for _, c := range runners {
		t := turns[c.name]
		to.add(c.name, fmt.Sprint(workers),
			spread("%.0f", each(t, turn.perSecond)), spread("%.2f", times(turns, c.name, runners[0].name, turn.perSecond)),
			middle("%.2f", each(t, turn.sent)), middle("%.2f", each(t, turn.executed)),
			middle("%.1f", each(t, turn.clientCPU)), middle("%.1f", each(t, turn.serverCPU)),
			spread("%.0f", each(t, turn.longestWait)))
	}
}
