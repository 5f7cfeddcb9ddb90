package main

import (
	"context"
	"errors"
	"fmt"
)

// P7 measures a lock on five servers, some of which are slow or stopped.
var quorumRow = row{
	name:  "P7",
	title: "Redlock on 5 servers, one goroutine: healthy, one slow by 20 ms, two stopped",
	about: `Each acquisition has a new key, and is released at once. Acquire and release are timed
separately. latchkit has a fence, on which the servers must agree; if they agree at once, one round
trip is enough. The stopped servers (SIGSTOP) continue after the work. Then the bench closes the
library, if it has a Close, and counts what is left: keys on the servers, and goroutines beyond
those before the work. Counters, markers, and the tombstones that unclear acquires leave for a
minute do not count. The contestant scripts only sends latchkit's votes, and the calls that take
them back.`,
	run: runQuorum,
}

func runQuorum(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchNodes(ctx, 5)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	f.table = newTable("contestant", "servers", "acquire p50 µs", "p99 µs", "release p50 µs", "one round trip %", "keys left", "goroutines left")
	for _, with := range conditions {
		turns := make(map[string][]quorumTurn)
		for round := range o.rounds {
			for _, c := range quorumContestants {
				progress("round %d of %d: %s, %s", round+1, o.rounds, c.name, with.name)
				t, err := srv.take(ctx, c.name, with, o.turn)
				if err != nil {
					return f, fmt.Errorf("%s, %s: %w", c.name, with.name, err)
				}
				turns[c.name] = append(turns[c.name], t)
			}
		}
		for _, c := range quorumContestants {
			t := turns[c.name]
			f.table.add(c.name, with.name,
				medianAndRange("%.0f", figuresOf(t, quorumTurn.tookP50)), medianAndRange("%.0f", figuresOf(t, quorumTurn.tookP99)), medianAndRange("%.0f", figuresOf(t, quorumTurn.gaveP50)),
				medianText("%.1f", figuresOf(t, quorumTurn.oneRound)), sumText(figuresOf(t, quorumTurn.keysLeft)), sumText(figuresOf(t, quorumTurn.goroutines)))
		}
		ours := turns[latchkitQuorum]
		f.verdicts = append(f.verdicts,
			atMost("P7 "+with.name+": acquire × redsync fail-fast", 1.4, "%.2f",
				ratios(figuresOf(ours, quorumTurn.tookP50), figuresOf(turns[redsyncFailFast], quorumTurn.tookP50))),
			atLeast("P7 "+with.name+": one round trip, %", 80, "%.1f", figuresOf(ours, quorumTurn.oneRound)),
			noEvents("P7 "+with.name+": keys left", ours, quorumTurn.keysLeft),
			noEvents("P7 "+with.name+": goroutines left", ours, quorumTurn.goroutines),
		)
	}
	return f, nil
}
