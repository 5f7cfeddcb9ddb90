package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// P6 measures what many held leases cost.
var hoardRow = row{
	name:  "P6",
	title: "Many held leases, renewed",
	about: `One process takes the leases, with a TTL of 10 s, and is observed for one TTL. By default, latchkit
renews after a third of the TTL, and rueidislock after half of it. redislock and redsync do not
renew: as in users' programs, one goroutine for each lock refreshes it after a third. The peers hold
fewer leases (see the column leases), because more leases would need the whole machine. The
contestant scripts renewed only sends latchkit's script, for up to 100 leases a call. CPU is a
percentage of one processor. Memory is the memory in use after a garbage collection, minus the
memory before the first lease. PING is sent by another client, once a millisecond, and is compared
with the PING of an idle server in the same round.`,
	run: runHoard,
}

// hoardTurn has the figures of one turn of P6.
type hoardTurn struct {
	leases int
	window time.Duration
	upkeep
	loss
	server load
	pings  []time.Duration
}

const idle = "nobody"

func runHoard(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	runners := append([]contestant{{name: idle}}, contestantsNamed(latchkit, scriptsRenewed, "redislock 100ms", "redsync", "rueidislock")...)
	turns, err := interleave(runners, o.hoardRounds, func(c contestant) (hoardTurn, error) {
		switch {
		case c.name == idle:
			pings, err := pingFor(ctx, srv, o.hoardTTL/5)
			return hoardTurn{pings: pings, window: o.hoardTTL / 5}, err
		case c.kind != peer:
			return takeHoardTurn(ctx, srv, c, o.leases, o.hoardTTL)
		default:
			return takeHoardTurn(ctx, srv, c, o.peerLeases, o.hoardTTL)
		}
	})
	if err != nil {
		return tbl, err
	}

	p50 := func(k hoardTurn) float64 { return micros(percentile(k.pings, 50)) }
	p99 := func(k hoardTurn) float64 { return micros(percentile(k.pings, 99)) }
	slower := func(name string) []float64 { return ratios(figuresOf(turns[name], p99), figuresOf(turns[idle], p99)) }
	tbl = newTable("contestant", "leases", "client CPU %", "µs a renewal", "server CPU %", "heap B/lease", "stack B/lease", "goroutines",
		"server calls/s", "PING p50 µs", "PING p99 µs", "× idle", "lost")
	for _, c := range runners {
		t := turns[c.name]
		cells := []string{"0", "–", "–", "–", "–", "–", "–", "–"}
		if c.name != idle {
			cells = []string{
				fmt.Sprint(t[0].leases),
				medianAndRange("%.1f", figuresOf(t, hoardTurn.clientPercent)), medianAndRange("%.2f", figuresOf(t, hoardTurn.microsEach)), medianAndRange("%.1f", figuresOf(t, hoardTurn.serverPercent)),
				medianText("%.0f", figuresOf(t, hoardTurn.heapEach)), medianText("%.0f", figuresOf(t, hoardTurn.stackEach)),
				medianText("%.0f", figuresOf(t, hoardTurn.goroutines)), medianText("%.0f", figuresOf(t, hoardTurn.calls)),
			}
		}
		cells = append(cells, medianText("%.0f", figuresOf(t, p50)), medianAndRange("%.0f", figuresOf(t, p99)), medianAndRange("%.2f", slower(c.name)),
			sumText(figuresOf(t, hoardTurn.lostLocks)))
		tbl.add(append([]string{c.name}, cells...)...)
	}
	return tbl, none("P6 leases lost", turns[latchkit], hoardTurn.lostLocks)
}

// takeHoardTurn runs one turn of c: a process that holds this many leases.
func takeHoardTurn(ctx context.Context, srv server, c contestant, leases int, ttl time.Duration) (k hoardTurn, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*ttl+4*patience)
	defer cancel()
	if err := srv.clear(ctx); err != nil {
		return k, err
	}
	k = hoardTurn{leases: leases, window: ttl}
	all, err := launchAll("hoard", []hoard{{Contestant: c.name, Settings: srv.settings(ttl, 0), Leases: leases, Window: k.window}})
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, all.end()) }()
	hoarder := all[0]

	if err := hoarder.expect(ctx, "held", nil); err != nil {
		return k, err
	}
	before, err := srv.load(ctx)
	if err != nil {
		return k, err
	}
	if err := hoarder.say("keep"); err != nil {
		return k, err
	}
	if k.pings, err = pingFor(ctx, srv, k.window); err != nil {
		return k, err
	}
	after, err := srv.load(ctx)
	if err != nil {
		return k, err
	}
	k.server = after.minus(before)
	if err := hoarder.expect(ctx, "kept", &k.upkeep); err != nil {
		return k, err
	}
	if err := hoarder.say("release"); err != nil {
		return k, err
	}
	if err := hoarder.expect(ctx, "released", &k.loss); err != nil {
		return k, err
	}
	if k.Lost > 0 {
		progress("%s lost %d of %d leases: %s", c.name, k.Lost, leases, k.First)
	}
	return k, all.finish()
}

// pingFor sends PINGs from another client of srv for the time window. It returns how long the
// replies took.
func pingFor(ctx context.Context, srv server, window time.Duration) (took []time.Duration, err error) {
	c := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer c.Close()
	if err := c.Ping(ctx).Err(); err != nil { // opens the connection, so that the first PING is not slow
		return nil, err
	}
	often := time.NewTicker(time.Millisecond)
	defer often.Stop()
	for end := time.Now().Add(window); time.Now().Before(end); <-often.C {
		start := time.Now()
		if err := c.Ping(ctx).Err(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}

func (k hoardTurn) clientPercent() float64 { return 100 * k.CPU.Seconds() / k.window.Seconds() }

// microsEach returns the CPU time for one renewal, in µs. The measurement takes one TTL, so
// each lease is renewed three times.
func (k hoardTurn) microsEach() float64 { return micros(k.CPU) / float64(3*k.leases) }

func (k hoardTurn) serverPercent() float64 { return 100 * k.server.cpu.Seconds() / k.window.Seconds() }
func (k hoardTurn) heapEach() float64      { return float64(k.Heap) / float64(k.leases) }
func (k hoardTurn) stackEach() float64     { return float64(k.Stack) / float64(k.leases) }

func (k hoardTurn) goroutines() float64 { return float64(k.Goroutines) }
func (k hoardTurn) lostLocks() float64  { return float64(k.Lost) }

// calls returns how many calls the server has executed per second. It does not count the PINGs of
// the bench.
func (k hoardTurn) calls() float64 {
	return float64(k.server.total()-k.server.calls["ping"]) / k.window.Seconds()
}
