package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// P11 measures what a lock on a Redis Cluster costs.
var shardsRow = row{
	name:  "P11",
	title: "Redis Cluster of 3, beside one server",
	about: `Own keys: 256 goroutines of one process, each with a key of its own, as in P2. The share is the part
of all client commands that the busiest master gets; a third would be best. Handed over: two
processes that pass one lock back and forth, as in P3. All nodes share the processors of this
machine, so the throughput is not that of a real cluster, but the numbers of commands are the same
as on a real cluster.`,
	run: runShards,
}

func runShards(ctx context.Context, o order) (f finding, err error) {
	alone, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, alone.close()) }()
	spread3, err := launchCluster()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, spread3.close()) }()
	places := []place{{"one server", alone}, {"cluster", spread3}}

	const floor = "floor"
	own := make(map[string][]turn)
	handed := make(map[string][]dialogue)
	busy := shape{processes: 1, workers: 256}
	f.table = newTable("contestant", "where", "work", "locks/s", "p50 µs", "client commands", "server calls", "busiest node", "client CPU µs", "violations")
	for round := range o.rounds {
		for _, p := range places {
			for _, c := range contestantsNamed(floor, latchkit) {
				progress("round %d of %d: %s, %s", round+1, o.rounds, c.name, p.name)
				t, err := busy.take(ctx, p.server, c, o.turn)
				if err != nil {
					return f, fmt.Errorf("%s, %s: %w", c.name, p.name, err)
				}
				own[c.name+p.name] = append(own[c.name+p.name], t)
			}
			d, err := converse(ctx, p.server, contestantsNamed(latchkit)[0], 2*o.turn, 0)
			if err != nil {
				return f, fmt.Errorf("hand-off, %s: %w", p.name, err)
			}
			handed[p.name] = append(handed[p.name], d)
		}
	}
	for _, c := range contestantsNamed(floor, latchkit) {
		for _, p := range places {
			t := own[c.name+p.name]
			f.table.add(c.name, p.name, "own keys", medianAndRange("%.0f", figuresOf(t, turn.perSecond)), "",
				medianText("%.2f", figuresOf(t, turn.clientCommands)), medianText("%.2f", figuresOf(t, turn.executed)), medianAndRange("%.2f", figuresOf(t, turn.busiestNode)),
				medianText("%.1f", figuresOf(t, turn.clientCPU)), sumText(figuresOf(t, turn.violations)))
		}
	}
	for _, p := range places {
		d := handed[p.name]
		f.table.add(latchkit, p.name, "handed over", "", medianAndRange("%.0f", figuresOf(d, dialogue.p50)),
			medianText("%.2f", figuresOf(d, dialogue.clientCommands)), medianText("%.2f", figuresOf(d, dialogue.executed)), "",
			medianText("%.1f", figuresOf(d, dialogue.clientCPU)), sumText(figuresOf(d, dialogue.violations)))
	}

	f.verdicts = shardVerdicts(own, handed, places[0].name, places[1].name)
	return f, nil
}

// shardVerdicts compares a cluster with one server. The map own has the turns in which each
// worker has its own key, and the map handed has the turns with hand-offs. The keys of both
// maps contain oneServer or threeMasters, the names of the two places.
func shardVerdicts(own map[string][]turn, handed map[string][]dialogue, oneServer, threeMasters string) []verdict {
	all := slices.Concat(own[latchkit+oneServer], own[latchkit+threeMasters])
	return []verdict{
		atMost("P11 own keys: client commands × one server", 1.01, "%.3f", ratios(figuresOf(own[latchkit+threeMasters], turn.clientCommands), figuresOf(own[latchkit+oneServer], turn.clientCommands))),
		atMost("P11 handed over: client commands × one server", 1.05, "%.3f", ratios(figuresOf(handed[threeMasters], dialogue.clientCommands), figuresOf(handed[oneServer], dialogue.clientCommands))),
		atMost("P11 handed over: p50 × one server", 2, "%.2f", ratios(figuresOf(handed[threeMasters], dialogue.p50), figuresOf(handed[oneServer], dialogue.p50))),
		atMost("P11 share of the busiest node", 0.42, "%.2f", figuresOf(own[latchkit+threeMasters], turn.busiestNode)),
		noEvents("P11 violations, own keys", all, turn.violations),
		noEvents("P11 violations, handed over", slices.Concat(handed[oneServer], handed[threeMasters]), dialogue.violations),
	}
}

// place is the server or cluster on which the contestants of this row lock.
type place struct {
	name   string
	server server
}

// busiestNode returns the share of all commands that the busiest master has executed.
func (t turn) busiestNode() float64 {
	most := 0
	for _, node := range t.server.nodes {
		most = max(most, node.commands(t.sends))
	}
	if len(t.server.nodes) == 0 {
		return 1
	}
	return float64(most) / float64(t.server.commands(t.sends))
}

func (d dialogue) violations() float64 { return float64(d.Violations) }
