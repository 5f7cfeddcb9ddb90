package main

import (
	"context"
	"errors"
	"math"
)

// Two rows measure one key that all workers want. In one row the workers are in several processes,
// and in the other row they are in one process.

// rivals are the contestants from other libraries, for both rows. Each rival waits in a
// different way.
var rivals = []string{"redislock 100ms", "redislock 1ms", "redsync", "rueidislock"}

func contend(ctx context.Context, o order, crowd shape) (f finding, turns map[string][]turn, err error) {
	on, err := launchServer()
	if err != nil {
		return f, nil, err
	}
	defer func() { err = errors.Join(err, on.close()) }()

	crowd.oneKey = true
	runners := field(append([]string{latchkitFair, latchkit, scriptsInOrder, scriptsHanded}, rivals...)...)
	turns, err = interleave(runners, o.rounds, func(c contestant) (turn, error) {
		return crowd.take(ctx, on, c, o.turn)
	})
	if err != nil {
		return f, nil, err
	}

	f.table = newTable("contestant", "locks/s", "× best peer", "client commands", "server calls", "Jain", "starved",
		"wait p50 ms", "p99 ms", "max ms", "client CPU µs", "server CPU µs", "violations")
	for _, c := range runners {
		t := turns[c.name]
		f.table.add(c.name,
			spread("%.0f", each(t, turn.perSecond)), spread("%.2f", timesBestPeer(turns, c.name)),
			middle("%.2f", each(t, turn.sent)), middle("%.2f", each(t, turn.executed)),
			spread("%.2f", each(t, turn.fairness)), spread("%.0f", each(t, turn.starved)),
			middle("%.2f", each(t, turn.waitP50)), spread("%.1f", each(t, turn.waitP99)), spread("%.0f", each(t, turn.longestWait)),
			middle("%.1f", each(t, turn.clientCPU)), middle("%.1f", each(t, turn.serverCPU)),
			total(each(t, turn.violations)))
	}
	return f, turns, nil
}

// timesBestPeer divides the throughput of a contestant by the largest throughput of a peer in the
// same round.
func timesBestPeer(turns map[string][]turn, name string) []float64 {
	return ratios(each(turns[name], turn.perSecond), bestPeer(turns, math.Max, turn.perSecond))
}

// bestPeer returns the best figure of any peer in each round.
func bestPeer(turns map[string][]turn, choose func(a, b float64) float64, figure func(turn) float64) []float64 {
	var all [][]float64
	for _, name := range rivals {
		all = append(all, each(turns[name], figure))
	}
	return perRound(choose, all...)
}
