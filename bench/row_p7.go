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

	f.table = quorumTable()
	for _, with := range conditions {
		turns, err := srv.interleave(ctx, o, quorumContestants, with)
		if err != nil {
			return f, err
		}
		addQuorums(&f.table, quorumContestants, turns, with)
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

func quorumTable() table {
	return newTable("contestant", "servers", "acquire p50 µs", "p99 µs", "release p50 µs", "one round trip %", "keys left", "goroutines left")
}

// addQuorums adds a line for each of the runners to tbl.
func addQuorums(tbl *table, runners []quorumContestant, turns map[string][]quorumTurn, with condition) {
	for _, c := range runners {
		t := turns[c.name]
		tbl.add(c.name, with.name,
			medianAndRange("%.0f", figuresOf(t, quorumTurn.tookP50)), medianAndRange("%.0f", figuresOf(t, quorumTurn.tookP99)), medianAndRange("%.0f", figuresOf(t, quorumTurn.gaveP50)),
			medianText("%.1f", figuresOf(t, quorumTurn.oneRound)), sumText(figuresOf(t, quorumTurn.keysLeft)), sumText(figuresOf(t, quorumTurn.goroutines)))
	}
}
