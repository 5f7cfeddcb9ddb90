package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The rows in this file measure locks over a network. A proxy in the bench's process delays each
// reply of the server, and shares the processors with the contestants.

// P2R measures uncontended locks over a slow connection.
var farRow = row{
	name:  "P2R",
	title: "Uncontended, over a network, a key each",
	about: `Each reply of the server comes 0.3, 1 or 5 ms later, through a proxy in the bench's process. The
contestant two pings is no lock but a goroutine that sends two PINGs, one after the other: no lock
whose acquire and release wait for the server can be faster. p50 and p99 are those of an acquire and
its release together.`,
	run: runFar,
}

var lines = []time.Duration{300 * time.Microsecond, time.Millisecond, 5 * time.Millisecond}

func runFar(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	const pings, rueidis = "two pings", "rueidislock"
	runners := contestantsNamed(pings, latchkit, latchkitPlain, "floor", "floor-ap", "redislock 100ms", rueidis)
	f.table = newTable("line", "contestant", "goroutines", "locks/s", "× rueidislock", "p50 µs", "× two pings", "p99 µs", "client CPU µs")
	for _, line := range lines {
		for _, workers := range []int{1, 8, 64, 256} {
			turns, err := interleave(runners, min(o.rounds, 3), func(c contestant) (turn, error) {
				crowd := shape{processes: 1, workers: workers, rotate: true, roundTrip: line}
				if c.name == pings {
					crowd.workers = 1
				}
				return crowd.take(ctx, srv, c, o.turn)
			})
			if err != nil {
				return f, err
			}
			for _, c := range runners {
				t := turns[c.name]
				f.table.add(line.String(), c.name, fmt.Sprint(workers),
					medianAndRange("%.0f", figuresOf(t, turn.perSecond)), medianText("%.2f", figureRatios(turns, c.name, rueidis, turn.perSecond)),
					medianAndRange("%.0f", figuresOf(t, turn.wholeP50)), medianText("%.2f", figureRatios(turns, c.name, pings, turn.wholeP50)),
					medianAndRange("%.0f", figuresOf(t, turn.wholeP99)), medianText("%.1f", figuresOf(t, turn.clientCPU)))
			}
			f.verdicts = append(f.verdicts, farVerdicts(line, workers, turns[latchkit], turns[pings], turns[rueidis])...)
		}
	}
	return f, nil
}

func farVerdicts(line time.Duration, workers int, ours, pings, rueidis []turn) []verdict {
	about := fmt.Sprintf("P2R %v, %s: ", line, goroutines(workers))
	p50 := ratios(figuresOf(ours, turn.wholeP50), figuresOf(pings, turn.wholeP50))
	faster := ratios(figuresOf(ours, turn.perSecond), figuresOf(rueidis, turn.perSecond))
	verdicts := []verdict{atMost(about+"p99 × p50", 1.5, "%.2f", ratios(figuresOf(ours, turn.wholeP99), figuresOf(ours, turn.wholeP50)))}
	switch {
	case workers <= 8:
		return append(verdicts, atMost(about+"p50 × two pings", 1.1, "%.2f", p50))
	case workers == 64:
		return append(verdicts, atMost(about+"p50 × two pings", 1.3, "%.2f", p50), atLeast(about+"throughput × rueidislock", 1.1, "%.2f", faster))
	default:
		return append(verdicts, atLeast(about+"throughput × rueidislock", 1.15, "%.2f", faster))
	}
}

// P3R measures a hand-off over a slow connection.
var farHandOffRow = row{
	name:  "P3R",
	title: "Hand-off to a waiter in another process, over 1 ms",
	about: `As P3, but each reply and each message of the server comes 1 ms later, through a proxy in the
bench's process.`,
	run: runFarHandOff,
}

func runFarHandOff(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	const wake = "wake-pub"
	runners := contestantsNamed(wake, latchkit, latchkitPlain, latchkitFair, "rueidislock", "redislock 1ms")
	turns, err := interleave(runners, o.rounds, func(c contestant) (dialogue, error) {
		return converse(ctx, srv, c, 2*o.turn, time.Millisecond)
	})
	if err != nil {
		return f, err
	}
	f.table = handOffTable(runners, turns)
	ours := turns[latchkit]
	f.verdicts = []verdict{
		atMost("P3R p50 × wake-pub", 1.15, "%.2f", ratios(figuresOf(ours, dialogue.p50), figuresOf(turns[wake], dialogue.p50))),
		noEvents("P3R violations", slices.Concat(ours, turns[latchkitFair]), func(d dialogue) float64 { return float64(d.Violations) }),
	}
	return f, nil
}

// P6R measures how renewals delay a lone caller.
var farHoardRow = row{
	name:  "P6R",
	title: "A lone caller beside many renewed leases, over 1 ms",
	about: `One process holds the leases over a line of 1 ms, with a TTL of 10 s, for one TTL. One more
goroutine of this process acquires and releases other keys, one after the other. Client CPU is that
of the whole process.`,
	run: runFarHoard,
}

// besideTurn is a turn of P6R: how long a lock of the lone caller took, beside held leases.
type besideTurn struct {
	upkeep
	loss
	window time.Duration
}

func (b besideTurn) p50() float64       { return micros(b.Calls.percentile(50)) }
func (b besideTurn) p99() float64       { return micros(b.Calls.percentile(99)) }
func (b besideTurn) longest() float64   { return micros(b.Calls.max) }
func (b besideTurn) lostLocks() float64 { return float64(b.Lost) }
func (b besideTurn) percent() float64   { return 100 * b.CPU.Seconds() / b.window.Seconds() }

func runFarHoard(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	f.table = newTable("contestant", "leases", "p50 µs", "p99 µs", "longest µs", "client CPU %", "lost")
	turns := make(map[string][]besideTurn)
	label := func(name string, leases int) string { return fmt.Sprintf("%s, %d", name, leases) }
	runners, amounts := contestantsNamed(latchkit, latchkitPlain), []int{0, o.leases}
	for _, leases := range amounts {
		some, err := interleave(runners, o.hoardRounds, func(c contestant) (besideTurn, error) {
			return takeBesideTurn(ctx, srv, c, leases, o.hoardTTL)
		})
		if err != nil {
			return f, err
		}
		for _, c := range runners {
			t := some[c.name]
			turns[label(c.name, leases)] = t
			f.table.add(c.name, fmt.Sprint(leases), medianAndRange("%.0f", figuresOf(t, besideTurn.p50)),
				medianAndRange("%.0f", figuresOf(t, besideTurn.p99)), medianAndRange("%.0f", figuresOf(t, besideTurn.longest)),
				medianText("%.1f", figuresOf(t, besideTurn.percent)), sumText(figuresOf(t, besideTurn.lostLocks)))
		}
	}
	beside, alone := turns[label(latchkit, o.leases)], turns[label(latchkit, 0)]
	f.verdicts = []verdict{
		atMost(fmt.Sprintf("P6R p99 of a call beside %d leases × alone", o.leases), 1.5, "%.2f",
			ratios(figuresOf(beside, besideTurn.p99), figuresOf(alone, besideTurn.p99))),
		noEvents("P6R leases lost", beside, besideTurn.lostLocks),
	}
	return f, nil
}

// takeBesideTurn runs one turn of c: a process that holds this many leases, and locks other keys.
func takeBesideTurn(ctx context.Context, srv server, c contestant, leases int, ttl time.Duration) (b besideTurn, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*ttl+4*patience)
	defer cancel()
	if err := srv.clear(ctx); err != nil {
		return b, err
	}
	addr, hangUp, err := over(srv.Addr(), time.Millisecond)
	if err != nil {
		return b, err
	}
	defer hangUp()
	spec := hoard{Contestant: c.name, Settings: srv.settings(ttl, 0), Leases: leases, Window: ttl, Caller: true}
	spec.Settings.Addr = addr
	all, err := launchAll("hoard", []hoard{spec})
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, all.end()) }()
	b.window = ttl
	hoarder := all[0]
	for _, step := range []struct {
		await string
		value any
		say   string
	}{{"held", nil, "keep"}, {"kept", &b.upkeep, "release"}, {"released", &b.loss, ""}} {
		if err := hoarder.expect(ctx, step.await, step.value); err != nil {
			return b, err
		}
		if step.say != "" {
			if err := hoarder.say(step.say); err != nil {
				return b, err
			}
		}
	}
	return b, all.finish()
}

// P7R measures a quorum whose nodes are at different distances.
var farQuorumRow = row{
	name:  "P7R",
	title: "Redlock on 5 servers at 0.5 to 2 ms, one goroutine",
	about: `As P7, but the replies of the five servers come 0.5, 0.9, 1.2, 1.6 and 2 ms later. The contestant
five pings is no lock: it sends a PING to each server together, and returns with the third answer.`,
	run: runFarQuorum,
}

var spread = condition{name: "at 0.5 to 2 ms", lines: []time.Duration{
	500 * time.Microsecond, 900 * time.Microsecond, 1200 * time.Microsecond, 1600 * time.Microsecond, 2 * time.Millisecond,
}}

func runFarQuorum(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchNodes(ctx, len(spread.lines))
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	runners := slices.Insert(slices.Clone(quorumContestants), 0, quorumPings)
	turns, err := srv.interleave(ctx, o, runners, spread)
	if err != nil {
		return f, err
	}
	f.table = quorumTable()
	addQuorums(&f.table, runners, turns, spread)
	ours := turns[latchkitQuorum]
	f.verdicts = []verdict{
		atMost("P7R acquire p50 × third of five pings", 1.1, "%.2f",
			ratios(figuresOf(ours, quorumTurn.tookP50), figuresOf(turns[quorumPings.name], quorumTurn.tookP50))),
		noEvents("P7R keys left", ours, quorumTurn.keysLeft),
	}
	return f, nil
}
