package main

import (
	"context"
	"errors"
	"fmt"
)

// P7 measures a lock on five servers, some of which are slow or stopped.
var quorumRow = row{
	name:  "P7",
	title: "Redlock on 5 servers, one goroutine: healthy, one slow by 20 ms, one or two stopped",
	about: `Each acquisition has a new key, and is released at once. Acquire and release are timed
separately. latchkit has a fence, on which the servers must agree; if they agree at once, one round
trip is enough. The stopped servers (SIGSTOP) continue after the work. Then the bench closes the
library, if it has a Close, and counts what is left: keys on the servers, and goroutines beyond
those before the work. Counters, markers, and the tombstones that unclear acquires leave for a
minute do not count. The contestant scripts only sends latchkit's votes, and the calls that take
them back.`,
	run: runQuorum,
}

func runQuorum(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchNodes(ctx, 5)
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	tbl = newTable("contestant", "servers", "acquire p50 µs", "× redsync fail-fast", "p99 µs", "release p50 µs", "one round trip %", "keys left", "goroutines left")
	for _, with := range conditions {
		turns, err := srv.interleave(ctx, o, quorumContestants, with)
		if err != nil {
			return tbl, err
		}
		for _, c := range quorumContestants {
			t := turns[c.name]
			tbl.add(c.name, with.name,
				medianAndRange("%.0f", figuresOf(t, quorumTurn.tookP50)), medianAndRange("%.2f", ratios(figuresOf(t, quorumTurn.tookP50), figuresOf(turns[redsyncFailFast], quorumTurn.tookP50))),
				medianAndRange("%.0f", figuresOf(t, quorumTurn.tookP99)), medianAndRange("%.0f", figuresOf(t, quorumTurn.gaveP50)),
				medianText("%.1f", figuresOf(t, quorumTurn.oneRound)), sumText(figuresOf(t, quorumTurn.keysLeft)), sumText(figuresOf(t, quorumTurn.goroutines)))
		}
	}
	return tbl, nil
}

// interleave runs the turns of runners under the condition with, in the order A B C A B C ….
func (c *cluster) interleave(ctx context.Context, o order, runners []quorumContestant, with condition) (map[string][]quorumTurn, error) {
	turns := make(map[string][]quorumTurn)
	for round := range o.rounds {
		for _, r := range runners {
			progress("round %d of %d: %s, %s", round+1, o.rounds, r.name, with.name)
			t, err := c.take(ctx, r.name, with, o.turn)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", r.name, with.name, err)
			}
			turns[r.name] = append(turns[r.name], t)
		}
	}
	return turns, nil
}
