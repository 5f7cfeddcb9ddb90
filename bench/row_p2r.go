package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// P2R measures uncontended locks over a network. A proxy in the bench's process delays each reply of the
// server, and shares the processors with the contestants.
var farRow = row{
	name:  "P2R",
	title: "Uncontended, over a network, a key each",
	about: `Each reply of the server comes 1 ms later, through a proxy in the bench's process. The
contestant two pings is no lock but a goroutine that sends two PINGs, one after the other: no lock
whose acquire and release wait for the server can be faster. p50 and p99 are those of an acquire and
its release together.`,
	run: runFar,
}

// line is the round trip of P2R.
const line = time.Millisecond

func runFar(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	const pings, redislock, rueidis = "two pings", "redislock 100ms", "rueidislock"
	runners := contestantsNamed(pings, latchkit, latchkitPlain, redislock, rueidis)
	tbl = newTable("contestant", "goroutines", "locks/s", "× rueidislock", "p50 µs", "× two pings", "p99 µs", "client CPU µs")
	var pinged []turn // by one goroutine: more of them would say nothing else
	for _, workers := range []int{1, 8, 64, 256} {
		turns, err := interleave(runners, o.rounds, func(c contestant) (turn, error) {
			crowd := shape{processes: 1, workers: workers, rotate: true, roundTrip: line}
			return crowd.take(ctx, srv, c, o.turn)
		})
		if err != nil {
			return tbl, err
		}
		if workers == 1 {
			pinged = turns[pings]
		}
		turns[pings] = pinged
		for _, c := range runners {
			t := turns[c.name]
			tbl.add(c.name, fmt.Sprint(workers),
				medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianAndRange("%.2f", figureRatios(turns, c.name, rueidis, turn.perSecond)),
				medianText("%.0f", figuresOf(t, turn.wholeP50)), medianText("%.2f", figureRatios(turns, c.name, pings, turn.wholeP50)),
				medianText("%.0f", figuresOf(t, turn.wholeP99)), medianText("%.1f", figuresOf(t, turn.clientCPU)))
		}
		runners = contestantsNamed(latchkit, latchkitPlain, redislock, rueidis)
	}
	return tbl, nil
}
