package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
)

// P22 measures how long a heavy waiter that does not react delays the light waiters behind it.
var headRow = row{
	name:  "P22",
	title: "A dead heavy head: light waiters of a semaphore of 50",
	about: fmt.Sprintf(`A process holds 10 units of 50. Another one waits for all 50, and a third one has %d callers
that wait for one unit each, behind it: the queue is strict, so they wait although 40 units are
free. Then the heavy waiter leaves, is killed (SIGKILL), or is stopped (SIGSTOP). The figures are
the times from then until a light waiter has its unit. In the last case the holder releases, one
second after the kill. No peer has a semaphore with a queue.`, lightWaiters),
	run: runHeads,
}

const lightWaiters = 10

var heads = []struct {
	name   string
	strike func(holder, heavy *child) error
}{
	{"it leaves", func(_, heavy *child) error { return heavy.say("leave") }},
	{"it is killed", func(_, heavy *child) error { return heavy.process.Kill() }},
	{"it is stopped", func(_, heavy *child) error { return heavy.process.Pause() }},
	{"it is killed, and a holder releases 1 s later", func(holder, heavy *child) error {
		err := heavy.process.Kill()
		time.Sleep(time.Second)
		return errors.Join(err, holder.say("release"))
	}},
}

func runHeads(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	f.table = newTable("the heavy waiter", "light waiters", "ms", "max ms")
	for _, h := range heads {
		var late []float64
		for range o.rounds {
			times, err := lightDelays(ctx, srv, h.strike, o.inheritTTL)
			if err != nil {
				return f, fmt.Errorf("%s: %w", h.name, err)
			}
			late = append(late, figuresOf(times, millis)...)
		}
		f.table.add(h.name, fmt.Sprint(len(late)), medianAndRange("%.1f", late), medianText("%.0f", []float64{percentile(late, 100)}))
		progress("P22 %s: %.1f ms", h.name, median(late))
		if h.name == "it is killed" {
			f.verdicts = append(f.verdicts, atMost("P22 killed: the longest wait, ms", 3500, "%.0f", []float64{percentile(late, 100)}))
		}
	}
	return f, nil
}

// lightDelays returns, for each light waiter, the time from the call of strike until the waiter got
// its unit. The function strike makes the heavy waiter leave, or kills it, or stops it.
func lightDelays(ctx context.Context, srv server, strike func(holder, heavy *child) error, ttl time.Duration) (delays []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*ttl+patience)
	defer cancel()
	if err := srv.clear(ctx); err != nil {
		return nil, err
	}
	var all children
	defer func() { err = errors.Join(err, all.end()) }()
	for i, u := range []units{{Callers: 1, Weight: 10}, {Callers: 1, Weight: mostPermits}, {Callers: lightWaiters, Weight: 1}} {
		u.Settings = srv.settings(lockTTL, i)
		c, err := launch("units", u)
		if err != nil {
			return nil, err
		}
		if all = append(all, c); i == 0 {
			err = c.expect(ctx, "had", nil)
		} else {
			err = awaitQueue(ctx, srv, i)
		}
		if err != nil {
			return nil, err
		}
	}
	began := monotonic()
	if err := strike(all[0], all[1]); err != nil {
		return nil, err
	}
	var had []time.Duration
	if err := all[2].expect(ctx, "had", &had); err != nil {
		return nil, err
	}
	for _, at := range had {
		if at < began {
			return nil, errors.New("a light waiter overtook the heavy one")
		}
		delays = append(delays, at-began)
	}
	return delays, nil
}

// awaitQueue waits until n processes are in the queue. The callers of one process that want the
// same number of units share an entry in the queue.
func awaitQueue(ctx context.Context, srv server, n int) error {
	for srv.witness.ZCard(ctx, redisstore.QueueKey(unitsKey)).Val() < int64(n) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(expiryGap) // after this pause, each waiter has the reply to its call, and waits
	return nil
}
