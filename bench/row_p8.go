package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// P8: how long a lock stays with the dead.
var inheritRow = row{
	name:  "P8",
	title: "Holder killed: from the lock's expiry until a waiter has it",
	about: `A process that holds 4 locks, TTL 2 s, is killed (SIGKILL) while another process waits for them. The server's own clock
says when each of the keys is gone: the first millisecond after PEXPIRETIME, before which nobody can have it. Nobody looks at the
keys meanwhile: a look would make the server expire them, and so wake those who wait for its invalidations. All kills of all
rounds are put together.`,
	run: runInherit,
}

// willKeys is how many locks a killed process leaves.
const willKeys = 4

func runInherit(ctx context.Context, o order) (f finding, err error) {
	on, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, on.close()) }()

	runners := field(latchkit, "redislock 100ms", "redislock 1ms", "redsync", "rueidislock")
	turns, err := interleave(runners, o.rounds, func(c contestant) ([]time.Duration, error) {
		return inherit(ctx, on, c, o.inheritTTL)
	})
	if err != nil {
		return f, err
	}

	f.table = newTable("contestant", "kills", "ms [min–max]", "p99 ms")
	var ours []time.Duration
	for _, c := range runners {
		var all []time.Duration
		for _, t := range turns[c.name] {
			all = append(all, t...)
		}
		if c.name == latchkit {
			ours = all
		}
		f.table.add(c.name, fmt.Sprint(len(all)), spread("%.2f", each(all, millis)), fmt.Sprintf("%.2f", millis(percentile(all, 99))))
	}
	f.verdicts = []verdict{
		atMost("P8 median, ms", 1, "%.2f", each(ours, millis)),
		atMost("P8 p99, ms", 3, "%.2f", []float64{millis(percentile(ours, 99))}),
	}
	return f, nil
}

// inherit gives a contestant one turn.
func inherit(ctx context.Context, on server, c contestant, ttl time.Duration) (late []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*ttl+patience)
	defer cancel()
	if err := on.clear(ctx); err != nil {
		return nil, err
	}
	part := func(process int) []will {
		return []will{{c.name, settings{on.Addr(), ttl, process}, willKeys}}
	}
	holder, err := launchAll("holder", part(0))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, holder.end()) }()
	if err := holder[0].expect(ctx, "held", nil); err != nil {
		return nil, err
	}
	heir, err := launchAll("heir", part(1))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, heir.end()) }()
	if err := heir[0].expect(ctx, "waiting", nil); err != nil {
		return nil, err
	}

	if err := holder.end(); err != nil {
		return nil, err
	}
	var gone [willKeys]time.Duration
	for i := range gone {
		if gone[i], err = expiry(ctx, on, c.keyOnServer(willKey(i))); err != nil {
			return nil, err
		}
	}
	var had [willKeys]time.Duration
	if err := heir[0].expect(ctx, "had", &had); err != nil {
		return nil, err
	}
	for i := range had {
		late = append(late, had[i]-gone[i])
		if had[i] < gone[i] {
			return nil, fmt.Errorf("somebody had a lock %v before its time was over", gone[i]-had[i])
		}
	}
	return late, heir.finish()
}

// expiry is when the server will take the key for gone, on the clock of monotonic.
func expiry(ctx context.Context, on server, key string) (time.Duration, error) {
	at, err := on.witness.PExpireTime(ctx, key).Result()
	if err != nil {
		return 0, err
	}
	if at <= 0 {
		return 0, fmt.Errorf("%s is not held, or does not expire", key)
	}
	return sinceBoot(time.UnixMilli(at.Milliseconds() + 1)), nil
}
