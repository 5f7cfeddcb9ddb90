package main

import (
	"context"
	"errors"
)

// P1 measures what an uncontended lock costs.
var uncontendedRow = row{
	name:  "P1",
	title: "Uncontended acquire and release, one goroutine",
	about: `Client and server share one processor. On several processors, a round trip has one of two speeds,
depending on whether client and server share a processor: row P1u measures this effect. Turns are
half as long as in other rows, and there are more rounds. latchkit's client has
ContextTimeoutEnabled, as in the README. On a machine with other load, the sum of client CPU and
server CPU is a better figure than the time. Allocations are those of the whole client process; the
bench itself makes one in each turn of floor, floor-rueidis and rueidislock. The contestant scripts
only sends latchkit's scripts. latchkit NewScriptless has no fence and no queue.`,
	run: runUncontended,
}

func runUncontended(ctx context.Context, o order) (f finding, err error) {
	var on server
	launch := func() (err error) { on, err = launchServer(); return err }
	if err := pinned(launch); err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, on.close()) }()

	const floor = "floor"
	runners := field(floor, latchkit, latchkitOnRueidis, latchkitScriptless, "redislock 100ms", "redsync", "rueidislock", "floor-rueidis", scripts)
	alone := shape{processes: 1, workers: 1, onOneCPU: true}
	turns, err := interleave(runners, o.aloneRounds, func(c contestant) (turn, error) {
		return alone.take(ctx, on, c, o.turn/2)
	})
	if err != nil {
		return f, err
	}

	f.table = loneTable(runners, turns)
	f.verdicts = []verdict{
		atMost("P1 time × scripts", 1.1, "%.2f", times(turns, latchkit, scripts, turn.microsEach)),
		atMost("P1 client commands", 2.01, "%.2f", each(turns[latchkit], turn.sent)),
		atMost("P1 allocations", 25, "%.1f", each(turns[latchkit], turn.allocs)),
	}
	return f, nil
}

// times divides, in each round, a figure of one contestant by the same figure of another
// contestant.
func times(turns map[string][]turn, name, reference string, figure func(turn) float64) []float64 {
	return ratios(each(turns[name], figure), each(turns[reference], figure))
}

// loneTable makes the table of a row about one goroutine. The first of the runners is the floor.
func loneTable(runners []contestant, turns map[string][]turn) table {
	floor := runners[0].name
	all := newTable("contestant", "µs", "× floor", "CPU × floor", "client CPU × floor", "allocs", "client commands", "server calls",
		"client CPU µs", "server CPU µs")
	for _, c := range runners {
		t := turns[c.name]
		all.add(c.name,
			spread("%.1f", each(t, turn.microsEach)), spread("%.2f", times(turns, c.name, floor, turn.microsEach)),
			spread("%.2f", times(turns, c.name, floor, turn.allCPU)), spread("%.2f", times(turns, c.name, floor, turn.clientCPU)),
			middle("%.0f", each(t, turn.allocs)),
			middle("%.2f", each(t, turn.sent)), middle("%.2f", each(t, turn.executed)),
			middle("%.1f", each(t, turn.clientCPU)), middle("%.1f", each(t, turn.serverCPU)))
	}
	return all
}
