package main

import (
	"context"
	"errors"
	"math"
)

// Two rows measure one key that all workers want. In one row the workers are in several processes,
// and in the other row they are in one process.

// rivals are the contestants from other libraries in P4 and P5. Each rival waits in a different
// way.
var rivals = []string{"redislock 100ms", "redislock 1ms", "redsync", "rueidislock"}

// contend measures the workers of crowd, who all want one key, with each contestant.
func contend(ctx context.Context, o order, crowd shape) (f finding, turns map[string][]turn, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, nil, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	crowd.oneKey = true
	runners := contestantsNamed(append([]string{latchkitFair, latchkit, scriptsInOrder, scriptsHanded}, rivals...)...)
	turns, err = interleave(runners, o.rounds, func(c contestant) (turn, error) {
		return crowd.take(ctx, srv, c, o.turn)
	})
	if err != nil {
		return f, nil, err
	}

	f.table = newTable("contestant", "locks/s", "× best peer", "client commands", "server calls", "Jain", "starved",
		"wait p50 ms", "p99 ms", "max ms", "client CPU µs", "server CPU µs", "violations")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianAndRange("%.2f", ratiosToBestPeer(turns, c.name)),
			medianText("%.2f", figuresOf(t, turn.clientCommands)), medianText("%.2f", figuresOf(t, turn.executed)),
			medianAndRange("%.2f", figuresOf(t, turn.fairness)), medianAndRange("%.0f", figuresOf(t, turn.starved)),
			medianText("%.2f", figuresOf(t, turn.waitP50)), medianAndRange("%.1f", figuresOf(t, turn.waitP99)), medianAndRange("%.0f", figuresOf(t, turn.longestWait)),
			medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)),
			sumText(figuresOf(t, turn.violations)))
	}
	return f, turns, nil
}

// ratiosToBestPeer returns, for each round, the throughput of the named contestant divided by the
// largest throughput of a peer in that round.
func ratiosToBestPeer(turns map[string][]turn, name string) []float64 {
	return ratios(figuresOf(turns[name], turn.perSecond), bestPeer(turns, math.Max, turn.perSecond))
}

// bestPeer returns, for each round, the best figure of any peer. The function choose returns
// the better one of two figures.
func bestPeer(turns map[string][]turn, choose func(a, b float64) float64, figure func(turn) float64) []float64 {
	var all [][]float64
	for _, name := range rivals {
		all = append(all, figuresOf(turns[name], figure))
	}
	return perRound(choose, all...)
}
