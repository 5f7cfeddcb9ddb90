package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// P8 measures how long a lock stays locked after its holder has died.
var inheritRow = row{
	name:  "P8",
	title: "Holder killed: from the lock's expiry until a waiter has it",
	about: `A process that holds 4 locks with a TTL of 2 s is killed (SIGKILL) while another process
waits for them. The server's own clock shows when a key has expired: at the first millisecond after
its PEXPIRETIME. The bench does not look at the keys meanwhile, because a look would make the server
expire them and send invalidations to the waiters. The kills of all rounds are put together. A
waiter without a lock 5 s and two TTLs later counts as never served, and has no time.`,
	run: runInherit,
}

// willKeys is the number of locks that a killed process leaves.
const willKeys = 4

func runInherit(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()

	runners := contestantsNamed(latchkit, "redislock 100ms", "redislock 1ms", "redsync", "rueidislock")
	turns, err := interleave(runners, o.rounds, func(c contestant) (inheritance, error) {
		return inherit(ctx, srv, c, o.inheritTTL)
	})
	if err != nil {
		return tbl, err
	}

	tbl = newTable("contestant", "waiters", "ms", "p99 ms", "never served")
	for _, c := range runners {
		t := turns[c.name]
		tbl.add(c.name, fmt.Sprint(willKeys*len(t)), medianAndRange("%.2f", allOf(t)), medianText("%.2f", p99(allOf(t))),
			sumText(figuresOf(t, inheritance.missed)))
	}
	return tbl, none("P8 waiters never served", turns[latchkit], inheritance.missed)
}

// inheritance has the figures of one turn.
type inheritance struct {
	// for each waiter that got a lock: the time from the expiry of the old lease until then
	late        []time.Duration
	neverServed int
}

// allOf returns how long after the expiry each waiter got a lock, in ms. It covers all turns, and
// leaves out waiters that never got a lock.
func allOf(turns []inheritance) (late []float64) {
	for _, t := range turns {
		late = append(late, figuresOf(t.late, millis)...)
	}
	return late
}

// p99 returns a list that has only the 99th percentile. If there are no samples, the list is
// empty.
func p99(samples []float64) []float64 {
	if len(samples) == 0 {
		return nil
	}
	return []float64{percentile(samples, 99)}
}

func (i inheritance) missed() float64 { return float64(i.neverServed) }

// inherit runs one turn of c: it kills a holder, and measures how late the waiters get its locks.
func inherit(ctx context.Context, srv server, c contestant, ttl time.Duration) (left inheritance, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*ttl+patience)
	defer cancel()
	if err := srv.clear(ctx); err != nil {
		return left, err
	}
	part := func(process int) []will {
		return []will{{c.name, srv.settings(ttl, process), willKeys}}
	}
	holder, err := launchAll("holder", part(0))
	if err != nil {
		return left, err
	}
	defer func() { err = errors.Join(err, holder.end()) }()
	if err := holder[0].expect(ctx, "held", nil); err != nil {
		return left, err
	}
	heir, err := launchAll("heir", part(1))
	if err != nil {
		return left, err
	}
	defer func() { err = errors.Join(err, heir.end()) }()
	if err := heir[0].expect(ctx, "waiting", nil); err != nil {
		return left, err
	}

	if err := holder.end(); err != nil {
		return left, err
	}
	var gone [willKeys]time.Duration
	for i := range gone {
		if gone[i], err = expiry(ctx, srv, c.keyOnServer(willKey(i))); err != nil {
			return left, err
		}
	}
	var had [willKeys]time.Duration
	if err := heir[0].expect(ctx, "had", &had); err != nil {
		return left, err
	}
	for i := range had {
		switch {
		case had[i] == 0:
			left.neverServed++
		case had[i] < gone[i]:
			return left, fmt.Errorf("a waiter got a lock %v before it expired", gone[i]-had[i])
		default:
			left.late = append(left.late, had[i]-gone[i])
		}
	}
	return left, heir.finish()
}

// expiry returns when the key expires at the server, by the clock that monotonic reads.
func expiry(ctx context.Context, srv server, key string) (time.Duration, error) {
	at, err := srv.witness.PExpireTime(ctx, key).Result()
	if err != nil {
		return 0, err
	}
	if at <= 0 {
		return 0, fmt.Errorf("%s is not held, or does not expire", key)
	}
	return sinceBoot(time.UnixMilli(at.Milliseconds() + 1)), nil
}
