package main

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"time"
)

// P3 measures how long it takes until a waiter in another process gets the lock.
var handOffRow = row{
	name:  "P3",
	title: "Hand-off to a waiter in another process",
	about: `The time from the start of Release in one process until Acquire returns in the other process, on a
clock that both processes read (CLOCK_MONOTONIC). Two processes pass the lock back and forth, so
every acquisition waits. A holder releases at a random time, 2 to 6 ms after the other process began
to wait. The reference wake-pub is not a lock but a bare PUBLISH to a waiting subscriber. The
contestant scripts handed only sends latchkit's scripts and reads their messages: no lock that sends
them is faster. Holds are so short that a poller with an interval of 100 ms waits for nearly the
whole interval; after holds of random length it would wait for half of the interval. Client CPU
includes how the bench detects a waiter.`,
	run: runHandOff,
}

// dialogue is one turn of two processes that hand a lock back and forth.
type dialogue struct {
	handOffs // the hand-offs of both processes
	server   load
	sends    []string
}

func runHandOff(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	const wake = "wake-pub"
	runners := contestantsNamed(wake, scriptsHanded, latchkit, latchkitPlain, latchkitFair, "rueidislock", "redislock 100ms", "redislock 1ms", "redsync", "redsync 1ms")
	turns, err := interleave(runners, o.rounds, func(c contestant) (dialogue, error) {
		return converse(ctx, srv, c, 2*o.turn, 0)
	})
	if err != nil {
		return tbl, err
	}
	tbl = handOffTable(runners, turns)
	return tbl, none("P3 violations", slices.Concat(turns[latchkit], turns[latchkitFair]), dialogue.violations)
}

func (d dialogue) violations() float64 { return float64(d.Violations) }

// handOffTable makes the table of a row about hand-offs. The first of the runners is the reference.
func handOffTable(runners []contestant, turns map[string][]dialogue) table {
	wake := runners[0].name
	all := newTable("contestant", "p50 µs", "× wake-pub", "p99 µs", "× wake-pub", "client commands", "server calls",
		"client CPU µs", "server CPU µs", "hand-offs", "violations")
	for _, c := range runners {
		t := turns[c.name]
		all.add(c.name,
			medianAndRange("%.0f", figuresOf(t, dialogue.p50)), medianAndRange("%.2f", ratios(figuresOf(t, dialogue.p50), figuresOf(turns[wake], dialogue.p50))),
			medianAndRange("%.0f", figuresOf(t, dialogue.p99)), medianAndRange("%.2f", ratios(figuresOf(t, dialogue.p99), figuresOf(turns[wake], dialogue.p99))),
			medianText("%.2f", figuresOf(t, dialogue.clientCommands)), medianText("%.2f", figuresOf(t, dialogue.executed)),
			medianText("%.0f", figuresOf(t, dialogue.clientCPU)), medianText("%.0f", figuresOf(t, dialogue.serverCPU)),
			sumText(figuresOf(t, func(d dialogue) float64 { return float64(len(d.Took)) })),
			sumText(figuresOf(t, dialogue.violations)))
	}
	return all
}

// converse runs one turn of c, with two processes that hand the lock back and forth. The answers
// of the server come later by roundTrip.
func converse(ctx context.Context, srv server, c contestant, length, roundTrip time.Duration) (d dialogue, err error) {
	ctx, cancel := context.WithTimeout(ctx, length+patience)
	defer cancel()
	if err := srv.clear(ctx); err != nil {
		return d, err
	}
	arena, err := makeArena()
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, os.Remove(arena)) }()
	addr, hangUp, err := over(srv.Addr(), roundTrip)
	if err != nil {
		return d, err
	}
	defer hangUp()
	specs := make([]duet, 2)
	for i := range specs {
		specs[i] = duet{c.name, srv.settings(lockTTL, i), arena, length}
		specs[i].Settings.Addr = addr
	}
	all, err := launchAll("duet", specs)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, all.end()) }()

	parts, used, err := observe[handOffs](ctx, srv, all)
	if err != nil {
		return d, err
	}
	d.server, d.sends = used, c.sends
	for _, p := range parts {
		d.Took = append(d.Took, p.Took...)
		d.Acquired += p.Acquired
		d.CPU += p.CPU
		d.Violations += p.Violations
	}
	return d, nil
}

func (d dialogue) p50() float64 { return d.percentile(50) }
func (d dialogue) p99() float64 { return d.percentile(99) }

// percentile returns the percentile p in µs, or NaN if the turn had no hand-off: a process that
// polls may sleep during the whole of a short turn.
func (d dialogue) percentile(p float64) float64 {
	if len(d.Took) == 0 {
		return math.NaN()
	}
	return micros(percentile(d.Took, p))
}

func (d dialogue) clientCommands() float64 {
	return float64(d.server.commands(d.sends)) / float64(d.Acquired)
}
func (d dialogue) executed() float64  { return float64(d.server.total()) / float64(d.Acquired) }
func (d dialogue) clientCPU() float64 { return micros(d.CPU) / float64(d.Acquired) }
func (d dialogue) serverCPU() float64 { return micros(d.server.cpu) / float64(d.Acquired) }
