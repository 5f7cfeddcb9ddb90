package main

import (
	"context"
	"errors"
)

// P1u measures an uncontended lock while the kernel chooses the processors of client and server.
var unpinnedRow = row{
	name:  "P1u",
	title: "Uncontended acquire and release, one goroutine, not pinned",
	about: `As P1, but the kernel chooses the processors. The time then depends on whether client and
server share a processor; client CPU varies less.`,
	run: runUnpinned,
}

func runUnpinned(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	runners := contestantsNamed("floor", latchkit, latchkitPlain, "redislock 100ms", "redsync", "rueidislock")
	alone := shape{processes: 1, workers: 1}
	turns, err := interleave(runners, o.aloneRounds, func(c contestant) (turn, error) { return alone.take(ctx, srv, c, o.turn/2) })
	if err != nil {
		return tbl, err
	}
	return loneTable(runners, turns), nil
}
