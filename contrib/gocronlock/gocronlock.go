// Package gocronlock is a Locker and an Elector for gocron (version 2), on the locks of latchkit.
//
// gocron gives its Locker the name of a job, but not the scheduled time of the run. Choose what
// must run only once:
//
//	PerTick      each tick, where all processes know the times of ticks: cron jobs, daily jobs
//	PerInterval  the job in each interval, which each process counts from its start: DurationJob
//	NoOverlap    nothing: the job runs in each process, but not in two at the same time
//
//	each, err := gocronlock.PerTick(l, gocronlock.Round(time.Minute))
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(each))
//
// Name each job (gocron.WithName), because its name is the key. When the lock of a job is lost, the
// job continues, because gocron gives no context to a run. See [WithOnLost].
//
// With [NewElector], only the leader runs jobs. When the leader changes, a tick can run twice or
// not at all, because the clocks of processes differ. When a scheduler has an Elector, gocron uses
// no Locker. [WhileLeading] is a Locker that also does the work of an Elector.
//
// Use gocronlock when the program uses gocron already; otherwise use contrib/cronlock. "A leader, a
// cron tick, a schedule" in docs/choosing.md compares them with leaders and plain Rules.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
)

// ErrLate means that another process may have run the tick already, because this process asked for
// the tick too late.
var ErrLate = errors.New("gocronlock: the tick is so old that another process may have run it")

// PerTick returns a Locker with which a job runs once for each tick, in one of the processes. When
// a job is due, this Locker calls tick with the job's name. tick returns the time of the tick,
// which must be the same in all processes. See [Round]. The key is NAME@TICK, and is kept for the
// time of [WithWindow].
//
//	each, err := gocronlock.PerTick(l, gocronlock.Round(time.Minute))
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(each))
//
// No process waits. A refused process gets locker.ErrBusy, or locker.ErrUnavailable while Redis
// does not answer, and gocron skips the run.
//
// A process that was stopped may ask for its tick too late. It gets ErrLate when the tick is older
// than [WithWindow] minus [WithMaxSkew], or when the tick is in the future by more than
// [WithMaxSkew].
func PerTick(l locker.Locker, tick func(name string) time.Time, opts ...Option) (gocron.Locker, error) {
	return newJobs("PerTick", l, opts, func(j *jobs) {
		j.rule.KeepFor = j.window
		j.tick = tick
	})
}

// Round returns a function for [PerTick] that rounds the clock of the process to a multiple of d,
// as [time.Time.Round] does. The time of each tick must be a multiple of d, counted from midnight
// in UTC. Choose the longest possible d. For example, choose time.Hour for a job at 03:00. In
// doubt, choose time.Minute.
//
// A process that is late by more than half of d gets the next multiple of d, and then ErrLate. But
// a process that is late by about d takes the next multiple for its tick. If no job is due at this
// multiple, the process runs its tick again.
func Round(d time.Duration) func(name string) time.Time {
	if d <= 0 {
		return func(string) time.Time { return time.Time{} } // Lock refuses a zero time
	}
	return func(string) time.Time { return time.Now().Round(d) }
}

// PerInterval returns a Locker with which a job runs at most once in nine tenths of an interval, in
// one of the processes. The parameter every is the length of the interval. The key is the name of
// the job.
func PerInterval(l locker.Locker, every time.Duration, opts ...Option) (gocron.Locker, error) {
	if every < 10*time.Millisecond {
		return nil, fmt.Errorf("gocronlock: PerInterval: every is %v; give the interval of the jobs, at least 10ms", every)
	}
	return newJobs("PerInterval", l, opts, func(j *jobs) { j.rule.KeepFor = every * 9 / 10 })
}

// NoOverlap returns a Locker with which a job does not run in two processes at the same time. The
// key is the name of the job. The key is free when the job ends. So a process whose clock is behind
// may run the same tick again.
func NoOverlap(l locker.Locker, opts ...Option) (gocron.Locker, error) {
	return newJobs("NoOverlap", l, opts, func(*jobs) {})
}

// jobs is the gocron.Locker of this package.
type jobs struct {
	locker locker.Locker
	rule   locker.Rule
	tick   func(name string) time.Time // nil: the key is the name
	window time.Duration
	skew   time.Duration
	onLost func(name string, cause error)
}

// newJobs returns the Locker of the constructor with this name. When opts were applied, newJobs
// calls configure, which sets the fields that only this constructor sets.
func newJobs(constructor string, l locker.Locker, opts []Option, configure func(*jobs)) (gocron.Locker, error) {
	if l == nil {
		return nil, fmt.Errorf("gocronlock: %s: the Locker is nil; make one with locker.New, and check its error", constructor)
	}
	j := &jobs{locker: l, window: 30 * time.Second, skew: 5 * time.Second}
	j.rule = exclusive.Rule(l, locker.Rule{Wait: locker.NoWait})
	for _, o := range opts {
		o(j)
	}
	if j.skew < 0 || j.window <= j.skew+j.window/100 {
		return nil, fmt.Errorf("gocronlock: %s: WithWindow(%v) with WithMaxSkew(%v); the window must be longer than the skew", constructor, j.window, j.skew)
	}
	configure(j)
	if err := locker.Check(l, j.rule); err != nil {
		return nil, fmt.Errorf("gocronlock: %s: %w", constructor, err)
	}
	return j, nil
}

// Lock takes the lock of a job. gocron calls it when the job is due. If Lock returns an error,
// gocron skips the run. locker.ErrBusy means that another process runs the job.
func (j *jobs) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	rule, tick := j.rule, time.Time{}
	rule.Key, rule.Name = name, name
	if j.tick != nil {
		if tick = j.tick(name); tick.IsZero() {
			return nil, fmt.Errorf("gocronlock: the tick of %s is the zero time; give Round a positive duration, or another function", name)
		}
		rule.Key = name + "@" + tick.UTC().Format(time.RFC3339Nano)
		// If the tick is in the future, this process is late by more than half of an interval, and
		// Round has returned the next tick.
		if ahead := time.Until(tick.Round(0)); ahead > j.skew {
			return nil, fmt.Errorf("%w: the tick %s is due only in %v", ErrLate, rule.Key, ahead)
		}
	}
	lease, err := j.locker.Acquire(ctx, rule)
	if err != nil {
		return nil, err
	}
	// The age is checked after the grant, because this process may have been stopped during the
	// acquire.
	if j.tick != nil && time.Since(tick.Round(0)) >= j.window-j.skew-j.window/100 {
		_ = lease.Release(ctx)
		return nil, fmt.Errorf("%w: %s", ErrLate, rule.Key)
	}
	if j.onLost != nil {
		context.AfterFunc(lease.Context(), func() {
			if cause := context.Cause(lease.Context()); !errors.Is(cause, locker.ErrReleased) {
				j.onLost(name, cause)
			}
		})
	}
	return lock{lease}, nil
}

// lock is the lease of a job that runs.
type lock struct{ lease *locker.Lease }

// Unlock releases the lease. The server still remembers the key for the rest of the key's time.
func (l lock) Unlock(ctx context.Context) error { return l.lease.Release(ctx) }

// ErrNotLeading means that this process is not the leader.
var ErrNotLeading = errors.New("gocronlock: this process is not the leader")

// NewElector returns an Elector with which jobs run only while leader leads. The Elector never
// asks the server. Make leader with a Locker of locker.New: one of locker.NewSemaphore elects
// several leaders, and each of them would run the jobs. The program runs the leader:
//
//	go leader.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
func NewElector(leader *lead.Leader) gocron.Elector { return elector{leader} }

type elector struct{ leader *lead.Leader }

// IsLeader returns nil if this process leads now.
func (e elector) IsLeader(context.Context) error {
	if _, leading := e.leader.Leading(); !leading {
		return ErrNotLeading
	}
	return nil
}

// WhileLeading returns a Locker that locks with l while leader leads. While leader does not lead,
// this Locker refuses every job. Use it with [PerTick] instead of an Elector. Then a tick runs
// once, even when the leader changes.
func WhileLeading(leader *lead.Leader, l gocron.Locker) gocron.Locker {
	return whileLeading{elector{leader}, l}
}

type whileLeading struct {
	elector
	gocron.Locker
}

// Lock does the work of the inner Locker's Lock if this process leads.
func (w whileLeading) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	if w.Locker == nil {
		return nil, errors.New("gocronlock: WhileLeading: the Locker is nil; make one with PerTick, and check its error")
	}
	if err := w.IsLeader(ctx); err != nil {
		return nil, err
	}
	return w.Locker.Lock(ctx, name)
}

// An Option sets up a Locker of this package.
type Option func(*jobs)

// WithWindow sets how long a tick of [PerTick] is remembered. In this time after its start, no
// other process starts the tick. Default: 30 s.
func WithWindow(d time.Duration) Option { return func(j *jobs) { j.window = d } }

// WithMaxSkew sets by how much the clocks of two processes can differ. It must be less than
// [WithWindow]. Default: 5 s.
func WithMaxSkew(d time.Duration) Option { return func(j *jobs) { j.skew = d } }

// WithOnLost makes the package call f when the lock of a job is lost while the job runs. The job
// may then run in another process, too.
func WithOnLost(f func(name string, cause error)) Option { return func(j *jobs) { j.onLost = f } }
