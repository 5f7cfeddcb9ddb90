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
			for _, c := range field(floor, latchkit) {
				progress("round %d of %d: %s, %s", round+1, o.rounds, c.name, p.name)
				t, err := busy.take(ctx, p.server, c, o.turn)
				if err != nil {
					return f, fmt.Errorf("%s, %s: %w", c.name, p.name, err)
				}
				own[c.name+p.name] = append(own[c.name+p.name], t)
			}
			d, err := converse(ctx, p.server, field(latchkit)[0], 2*o.turn)
			if err != nil {
				return f, fmt.Errorf("hand-off, %s: %w", p.name, err)
			}
			handed[p.name] = append(handed[p.name], d)
		}
	}
	for _, c := range field(floor, latchkit) {
		for _, p := range places {
			t := own[c.name+p.name]
			f.table.add(c.name, p.name, "own keys", spread("%.0f", each(t, turn.perSecond)), "",
				middle("%.2f", each(t, turn.sent)), middle("%.2f", each(t, turn.executed)), spread("%.2f", each(t, turn.busiestNode)),
				middle("%.1f", each(t, turn.clientCPU)), total(each(t, turn.violations)))
		}
	}
	for _, p := range places {
		d := handed[p.name]
		f.table.add(latchkit, p.name, "handed over", "", spread("%.0f", each(d, dialogue.p50)),
			middle("%.2f", each(d, dialogue.sent)), middle("%.2f", each(d, dialogue.executed)), "",
			middle("%.1f", each(d, dialogue.clientCPU)), total(each(d, dialogue.violations)))
	}

	f.verdicts = shardVerdicts(own, handed, places[0].name, places[1].name)
	return f, nil
}

// shardVerdicts compares a cluster of three masters with one server.
func shardVerdicts(own map[string][]turn, handed map[string][]dialogue, one, three string) []verdict {
	all := slices.Concat(own[latchkit+one], own[latchkit+three])
	return []verdict{
		atMost("P11 own keys: client commands × one server", 1.01, "%.3f", ratios(each(own[latchkit+three], turn.sent), each(own[latchkit+one], turn.sent))),
		atMost("P11 handed over: client commands × one server", 1.05, "%.3f", ratios(each(handed[three], dialogue.sent), each(handed[one], dialogue.sent))),
		atMost("P11 handed over: p50 × one server", 2, "%.2f", ratios(each(handed[three], dialogue.p50), each(handed[one], dialogue.p50))),
		atMost("P11 share of the busiest node", 0.42, "%.2f", each(own[latchkit+three], turn.busiestNode)),
		none("P11 violations, own keys", all, turn.violations),
		none("P11 violations, handed over", slices.Concat(handed[one], handed[three]), dialogue.violations),
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
