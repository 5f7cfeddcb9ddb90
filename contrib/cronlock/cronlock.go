// Package cronlock runs each tick of a robfig/cron schedule in one of several processes.
//
//	c := cron.New()
//	_, err := cronlock.Once(c, l, "0 3 * * *", "report", func(ctx context.Context) error {
//		return makeReport(ctx, cronlock.Planned(ctx)) // ctx ends if the lock is lost
//	}, cronlock.WithMakeUp(10*time.Minute))
//	c.Start()
//
// All processes add the same job, with the same name. Each tick has a key of its own, such as
// report@2026-11-22T03:00:00Z. The time in the key is the scheduled time of the tick, and not the
// time at which a process starts the tick. So the clocks of the processes may differ by up to
// [WithMaxSkew] (5 s by default). If a process was suspended for a long time, the key of its tick
// is free again. Therefore each process checks the age of the tick after the grant, and skips an
// old tick.
//
// A tick runs at most once. If the process that runs a tick dies, the tick is lost. With
// [WithMakeUp], another process runs this tick again.
//
// Use cronlock when a schedule of robfig/cron names the times: each tick runs in one process, even
// if clocks differ. For other jobs, see "A leader, a cron tick, a schedule" in docs/choosing.md.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package cronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
)

// Once adds a job to c. At each tick of spec, the job runs in one of several processes. The parser
// of c reads spec. The parameter name is the name of the job. All processes must use the same name,
// and no other job may have this name.
//
//	_, err := cronlock.Once(c, l, "0 3 * * *", "report", makeReport, cronlock.WithMakeUp(10*time.Minute))
//
// Without [WithMakeUp], a refused process does not wait: it skips the tick. With WithMakeUp, it
// waits for up to ten minutes here, and runs the tick if nobody has succeeded. A process that Redis
// does not answer logs the error, and runs nothing.
//
// The context of job ends if the lock of the tick is lost, or when the context given by [WithBase]
// ends. An error of job is logged. Once returns an error if its arguments are wrong.
//
// "@every 5m" counts from the start of each process, so its ticks have no common time. A job with
// "@every" runs at most once in nine tenths of the interval. The process that is first in an
// interval runs the job.
//
// A program may also run the entry by hand, with c.Entry(id).WrappedJob.Run. Such a run counts as
// the next tick if this tick is due within [WithMaxSkew]. Otherwise its key has the time of the
// run.
//
// Do not give c a wrapper that skips runs, such as cron.SkipIfStillRunning: use [WithNoOverlap].
// The entry does not learn that a wrapper has skipped a tick. So a later run by hand counts as the
// skipped tick, and does nothing if this tick is too old or another process has run it.
func Once(c *cron.Cron, l locker.Locker, spec, name string, job func(ctx context.Context) error, opts ...Option) (cron.EntryID, error) {
	e := &entry{locker: l, name: name, job: job, cfg: config{
		base: context.Background(), window: 30 * time.Second, skew: 5 * time.Second, logger: slog.Default(),
	}}
	if err := e.prepare(c, spec, opts); err != nil {
		return 0, fmt.Errorf("cronlock: Once %q: %w", name, err)
	}
	return c.Schedule(&e.ticks, e), nil
}

// prepare applies the options, and checks the arguments of Once.
func (e *entry) prepare(c *cron.Cron, spec string, opts []Option) error {
	err := e.configure(c, opts)
	if err != nil {
		return err
	}
	if e.ticks.Schedule, err = parse(c, spec); err != nil {
		return err
	}
	if every, ok := e.ticks.Schedule.(cron.ConstantDelaySchedule); ok {
		if e.cfg.makesUp {
			return fmt.Errorf("WithMakeUp does not work with %q, because its ticks have no common time; give a spec such as */5 * * * *", spec)
		}
		e.interval = every.Delay
	}
	for _, r := range e.rules(time.Now()) {
		if err := locker.Check(e.locker, r); err != nil {
			return err
		}
	}
	return nil
}

// parse parses spec as c does. cron does not export its parser, so parse adds an entry without work
// to c, and removes this entry.
func parse(c *cron.Cron, spec string) (cron.Schedule, error) {
	id, err := c.AddFunc(spec, func() {})
	if err != nil {
		return nil, err
	}
	defer c.Remove(id)
	return c.Entry(id).Schedule, nil
}

// entry is a job of a schedule.
type entry struct {
	locker   locker.Locker
	name     string
	job      func(context.Context) error
	cfg      config
	interval time.Duration // the interval of "@every"; 0: ticks have a scheduled time
	ticks    ticks
}

var errLate = errors.New("the tick is so old that another process may have run it")

// Run runs the job for a tick, unless another process runs this tick or has run it. cron calls Run.
func (e *entry) Run() {
	tick := e.ticks.take(time.Now(), e.cfg.skew)
	err := e.run(tick)
	switch {
	case err == nil, errors.Is(err, locker.ErrBusy), errors.Is(err, locker.ErrDone), e.cfg.base.Err() != nil:
	case errors.Is(err, errLate):
		e.cfg.logger.Warn("latchkit: cronlock: a tick is left out", "job", e.name, "tick", tick, "reason", err)
	default:
		e.cfg.logger.Error("latchkit: cronlock: a job failed", "job", e.name, "tick", tick, "error", err)
	}
}

// run acquires the locks of a tick, and calls the job if the tick is not too old.
func (e *entry) run(tick time.Time) error {
	return locker.RunAll(e.cfg.base, e.locker, e.rules(tick), func(ctx context.Context) error {
		// The age is checked after the grant, because this process may have been stopped during the
		// acquire.
		if e.interval == 0 && time.Since(tick) >= e.maxAge() {
			return errLate
		}
		return e.job(context.WithValue(ctx, planned{}, tick.UTC()))
	})
}

// planned is the key of the time of a tick in the context of a job.
type planned struct{}

// Planned returns the scheduled time of the tick for which a job of [Once] runs, in UTC. It is the
// same in all processes, and in a run that makes up for a dead process, so take the date of a
// nightly job from it. With "@every", it is the time at which the run began. For another context, it
// is the zero time.
func Planned(ctx context.Context) time.Time {
	tick, _ := ctx.Value(planned{}).(time.Time)
	return tick
}

// rules returns the rules for the locks of a tick. Each rule has one holder, on every Locker.
func (e *entry) rules(tick time.Time) []locker.Rule {
	r := exclusive.Rule(e.locker, locker.Rule{Key: e.name, Name: e.name, Wait: locker.NoWait})
	early := max(time.Until(tick), 0) // a run by hand may come before its tick
	switch {
	case e.interval > 0:
		r.KeepFor = e.interval * 9 / 10
		return []locker.Rule{r} // this rule also prevents overlapping runs
	case e.cfg.makesUp:
		r.Key, r.Wait, r.OnceFor = e.keyOf(tick), e.cfg.window, e.memory()+early
	default:
		r.Key, r.KeepFor = e.keyOf(tick), e.memory()+early
	}
	if !e.cfg.noOverlap {
		return []locker.Rule{r}
	}
	return []locker.Rule{r, {Key: e.name, Name: e.name, Wait: r.Wait, Limit: r.Limit}}
}

// keyOf returns the key of a tick.
func (e *entry) keyOf(tick time.Time) string {
	return e.name + "@" + tick.UTC().Format(time.RFC3339)
}

// memory returns how long the server remembers a tick. This time begins when the job starts. With
// WithMakeUp, it begins when the job has ended.
func (e *entry) memory() time.Duration {
	if e.cfg.makesUp {
		return e.cfg.window + 2*e.cfg.skew
	}
	return e.cfg.window
}

// maxAge returns the age at which a tick is too old to be started by this process. The server
// remembers each tick that has run, at least until the tick has this age by the clock of every
// process. maxAge subtracts one hundredth of the time, because clocks run at different rates.
func (e *entry) maxAge() time.Duration {
	r := e.memory()
	return r - e.cfg.skew - r/100
}
