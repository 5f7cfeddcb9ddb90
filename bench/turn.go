package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// turn has the result and the cost of one turn: a contestant works for a fixed time.
type turn struct {
	took         time.Duration
	acquisitions float64
	client       work
	server       load
	sends        []string // the commands of the contestant, as in contestant.sends
}

// shape describes the workers of a row: how many processes and workers there are, and which
// keys they lock.
type shape struct {
	processes, workers int // number of workers in each process
	oneKey             bool
	rotate             bool // each worker has many keys
	shared             int  // how many keys all workers want, in random order
	onOneCPU           bool
	// the round trip time, if the servers are behind a proxy that delays replies; 0: no proxy
	roundTrip time.Duration
}

// lockTTL is the TTL of locks in most rows. It is longer than such a row's turns, so locks do
// not expire.
const lockTTL = 30 * time.Second

// take runs one turn of c on srv, for the time length. Each turn starts processes of its own, and
// ends them.
func (s shape) take(ctx context.Context, srv server, c contestant, length time.Duration) (t turn, err error) {
	ctx, cancel := context.WithTimeout(ctx, length+patience)
	defer cancel()
	if err := srv.clear(ctx); err != nil {
		return t, err
	}
	arena, err := makeArena()
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, os.Remove(arena)) }()

	addr, hangUp, err := over(srv.Addr(), s.roundTrip)
	if err != nil {
		return t, err
	}
	defer hangUp()
	specs := make([]crew, s.processes)
	for i := range specs {
		specs[i] = crew{
			Contestant: c.name, Settings: srv.settings(lockTTL, i),
			Workers: s.workers, Rotate: s.rotate, Shared: s.shared, Arena: arena, Turn: length,
		}
		specs[i].Settings.Addr = addr
		if s.oneKey {
			specs[i].Key = "wanted"
		}
	}
	var all children
	start := func() (err error) { all, err = launchAll("crew", specs); return err }
	if s.onOneCPU {
		err = runPinned(start)
	} else {
		err = start()
	}
	defer func() { err = errors.Join(err, all.end()) }()
	if err != nil {
		return t, err
	}
	return gather(ctx, srv, c, all, length)
}

// gather runs all children, and adds up their work. The sum is a turn of the contestant c.
func gather(ctx context.Context, srv server, c contestant, all children, length time.Duration) (turn, error) {
	parts, used, err := observe[work](ctx, srv, all)
	if err != nil {
		return turn{}, err
	}
	t := turn{took: length, server: used, sends: c.sends}
	for _, p := range parts {
		t.client.Counts = append(t.client.Counts, p.Counts...)
		t.client.Waits.merge(p.Waits)
		t.client.Whole.merge(p.Whole)
		t.client.CPU += p.CPU
		t.client.Mallocs += p.Mallocs
		t.client.Violations += p.Violations
	}
	for _, n := range t.client.Counts {
		t.acquisitions += float64(n)
	}
	return t, nil
}

// observe waits until all children are ready, starts them, and waits until they are done. It
// returns their reports, and what the server has executed meanwhile.
func observe[T any](ctx context.Context, srv server, all children) (reports []T, used load, err error) {
	if _, err := expectAll[any](ctx, all, "ready"); err != nil {
		return nil, used, err
	}
	before, err := srv.load(ctx)
	if err != nil {
		return nil, used, err
	}
	if err := all.start(); err != nil {
		return nil, used, err
	}
	if reports, err = expectAll[T](ctx, all, "done"); err != nil {
		return nil, used, err
	}
	after, err := srv.load(ctx)
	if err != nil {
		return nil, used, err
	}
	return reports, after.minus(before), all.finish()
}

// interleave calls the function take for each contestant in field, in the order A B C A B C …,
// and returns the turns by the contestants' names. So when the machine is slow for a while, it
// is slow for all contestants.
func interleave[T any](field []contestant, rounds int, take func(contestant) (T, error)) (map[string][]T, error) {
	turns := make(map[string][]T)
	for round := range rounds {
		for _, c := range field {
			progress("round %d of %d: %s", round+1, rounds, c.name)
			t, err := take(c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			turns[c.name] = append(turns[c.name], t)
		}
	}
	return turns, nil
}

// figuresOf returns the figure of each turn, in the order of the turns.
func figuresOf[T any](turns []T, figure func(T) float64) []float64 {
	figures := make([]float64, len(turns))
	for i, t := range turns {
		figures[i] = figure(t)
	}
	return figures
}

func (t turn) perSecond() float64      { return t.acquisitions / t.took.Seconds() }
func (t turn) allocs() float64         { return float64(t.client.Mallocs) / t.acquisitions }
func (t turn) clientCommands() float64 { return float64(t.server.commands(t.sends)) / t.acquisitions }
func (t turn) executed() float64       { return float64(t.server.total()) / t.acquisitions }
func (t turn) clientCPU() float64      { return micros(t.client.CPU) / t.acquisitions }
func (t turn) serverCPU() float64      { return micros(t.server.cpu) / t.acquisitions }
func (t turn) allCPU() float64         { return t.clientCPU() + t.serverCPU() }
func (t turn) fairness() float64       { return jain(t.client.Counts) }
func (t turn) wholeP50() float64       { return micros(t.client.Whole.percentile(50)) }
func (t turn) wholeP99() float64       { return micros(t.client.Whole.percentile(99)) }
func (t turn) waitP50() float64        { return millis(t.client.Waits.percentile(50)) }
func (t turn) waitP99() float64        { return millis(t.client.Waits.percentile(99)) }
func (t turn) violations() float64     { return float64(t.client.Violations) }
func (t turn) longestWait() float64    { return millis(t.client.Waits.max) }

// microsEach returns how long one acquire and release took, in µs, for one worker.
func (t turn) microsEach() float64 {
	return micros(t.took) * float64(len(t.client.Counts)) / t.acquisitions
}

// starved returns the number of workers that never got the lock.
func (t turn) starved() (n float64) {
	for _, c := range t.client.Counts {
		if c == 0 {
			n++
		}
	}
	return n
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
