package main

import (
	"context"
	"errors"
	"fmt"
)

// P21 measures when an optimistic update is better than a lock.
var updateRow = row{
	name:  "P21",
	title: "Read, add one, write: 4 processes × 16 goroutines that want few or many keys",
	about: `There is nearly never a conflict with 4096 keys, and always one with 1. "latchkit Update"
is optimistic.Update (WATCH, GET, EXEC, and a pause after a conflict), "latchkit lock" is Run around GET
and SET, and INCR is the server's own command. Times are those of a whole update.`,
	run: runUpdate,
}

// conflicts are the numbers of keys in the row.
var conflicts = []struct {
	name string
	keys int
}{{"low", 4096}, {"high", 1}}

func runUpdate(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	runners := contestantsNamed(updateOptimistic.name, updateLocked.name, updateIncr.name)
	tbl = newTable("contestant", "conflicts", "keys", "updates/s", "× lock", "p50 ms", "p99 ms", "max ms", "Jain", "client CPU µs", "server CPU µs")
	for _, level := range conflicts {
		turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
			return shape{processes: 4, workers: 16, shared: level.keys}.take(ctx, srv, c, o.turn)
		})
		if err != nil {
			return tbl, err
		}
		for _, c := range runners {
			t := turns[c.name]
			tbl.add(c.name, level.name, fmt.Sprint(level.keys),
				medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianAndRange("%.2f", figureRatios(turns, c.name, updateLocked.name, turn.perSecond)),
				medianText("%.2f", figuresOf(t, turn.waitP50)), medianAndRange("%.1f", figuresOf(t, turn.waitP99)), medianAndRange("%.0f", figuresOf(t, turn.longestWait)),
				medianAndRange("%.2f", figuresOf(t, turn.fairness)),
				medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)))
		}
	}
	return tbl, nil
}
