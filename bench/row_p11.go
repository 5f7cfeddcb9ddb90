package main

import (
	"context"
	"errors"
	"fmt"
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

func runShards(ctx context.Context, o order) (tbl table, err error) {
	alone, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, alone.close()) }()
	spread3, err := launchCluster()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, spread3.close()) }()
	places := []place{{"one server", alone}, {"cluster", spread3}}

	const floor = "floor"
	own := make(map[string][]turn)
	handed := make(map[string][]dialogue)
	busy := shape{processes: 1, workers: 256}
	tbl = newTable("contestant", "where", "work", "locks/s", "p50 µs", "client commands", "server calls", "busiest node", "client CPU µs", "violations")
	for round := range o.rounds {
		for _, p := range places {
			for _, c := range contestantsNamed(floor, latchkit) {
				progress("round %d of %d: %s, %s", round+1, o.rounds, c.name, p.name)
				t, err := busy.take(ctx, p.server, c, o.turn)
				if err != nil {
					return tbl, fmt.Errorf("%s, %s: %w", c.name, p.name, err)
				}
				own[c.name+p.name] = append(own[c.name+p.name], t)
			}
			d, err := converse(ctx, p.server, contestantsNamed(latchkit)[0], 2*o.turn, 0)
			if err != nil {
				return tbl, fmt.Errorf("hand-off, %s: %w", p.name, err)
			}
			handed[p.name] = append(handed[p.name], d)
		}
	}
	for _, c := range contestantsNamed(floor, latchkit) {
		for _, p := range places {
			t := own[c.name+p.name]
			tbl.add(c.name, p.name, "own keys", medianAndRange("%.0f", figuresOf(t, turn.perSecond)), "",
				medianText("%.2f", figuresOf(t, turn.clientCommands)), medianText("%.2f", figuresOf(t, turn.executed)), medianAndRange("%.2f", figuresOf(t, turn.busiestNode)),
				medianText("%.1f", figuresOf(t, turn.clientCPU)), sumText(figuresOf(t, turn.violations)))
		}
	}
	for _, p := range places {
		d := handed[p.name]
		tbl.add(latchkit, p.name, "handed over", "", medianAndRange("%.0f", figuresOf(d, dialogue.p50)),
			medianText("%.2f", figuresOf(d, dialogue.clientCommands)), medianText("%.2f", figuresOf(d, dialogue.executed)), "",
			medianText("%.1f", figuresOf(d, dialogue.clientCPU)), sumText(figuresOf(d, dialogue.violations)))
	}

	var all []turn
	var passed []dialogue
	for _, p := range places {
		all, passed = append(all, own[latchkit+p.name]...), append(passed, handed[p.name]...)
	}
	return tbl, errors.Join(none("P11 violations, own keys", all, turn.violations), none("P11 violations, handed over", passed, dialogue.violations))
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
