package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/typednil"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
)

// RunScheduler runs a scheduler in one of several processes: in the leader, which holds the lock of
// the schedule. Call RunScheduler in all of these processes. The other processes wait. When the
// leader stops, another process takes over at once. When the leader dies, another process takes
// over after the lock's TTL.
//
// RunScheduler calls build at the beginning of each term, because a stopped scheduler cannot be
// started again. build must make the scheduler with the given options. build may also set options
// that are empty. Give your own PreEnqueueFunc to [WithSchedulerBase]. If build sets another
// PreEnqueueFunc, this function must call the given function. RunScheduler checks this once, with a
// task "asynqlock:probe". For example:
//
//	build := func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
//		s := asynq.NewScheduler(redis, opts)
//		_, err := s.Register("0 3 * * *", asynq.NewTask("report:nightly", nil))
//		return s, err
//	}
//	err := asynqlock.RunScheduler(ctx, l, build, asynqlock.WithCatchUp(6*time.Hour))
//
// RunScheduler returns nil when ctx ends. It returns an error if build fails, if the scheduler does
// not start, or if the Locker is closed or does not support the rule. While the lock server cannot
// be reached, RunScheduler tries again.
//
// No tick is enqueued twice. The options' PreEnqueueFunc lets a tick pass only if this process
// still holds the lock by its own clock. So a process that was paused for too long does not
// enqueue its late ticks. Each tick also claims its slot, which is made of the task, its options
// and the second. So if the clocks of the old and the new leader differ, only one of the leaders
// enqueues the tick. Ticks that are due while no process leads are lost, unless [WithCatchUp] makes
// them up.
func RunScheduler(ctx context.Context, l locker.Locker, build func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error), opts ...SchedulerOption) error {
	if build == nil {
		return errors.New("asynqlock: RunScheduler: build is nil; give a function that makes the scheduler")
	}
	return runLeader(ctx, l, "RunScheduler", opts, func(o *asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error) {
		s, err := build(o)
		if err == nil && s == nil {
			err = errors.New("build returned no scheduler")
		}
		return s, s, err
	})
}

// RunPeriodicTaskManager is [RunScheduler] for a scheduler whose entries come from a
// PeriodicTaskConfigProvider. build must set PeriodicTaskManagerOpts.SchedulerOpts to the given
// options.
func RunPeriodicTaskManager(ctx context.Context, l locker.Locker, build func(opts *asynq.SchedulerOpts) (*asynq.PeriodicTaskManager, error), opts ...SchedulerOption) error {
	if build == nil {
		return errors.New("asynqlock: RunPeriodicTaskManager: build is nil; give a function that makes the manager")
	}
	return runLeader(ctx, l, "RunPeriodicTaskManager", opts, func(o *asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error) {
		m, err := build(o)
		switch {
		case err != nil:
			return nil, nil, err
		case m == nil:
			return nil, nil, errors.New("build returned no manager")
		}
		s, err := unexported[*asynq.Scheduler](m, "s")
		return m, s, err
	})
}

// A SchedulerOption sets up [RunScheduler] and [RunPeriodicTaskManager].
type SchedulerOption func(*leadership)

// WithSchedulerKey sets the key of the schedule's lock. Schedules with different leaders need
// different keys. Default: "asynq-scheduler".
func WithSchedulerKey(key string) SchedulerOption { return func(ls *leadership) { ls.rule.Key = key } }

// WithSchedulerTTL sets the time after which another process takes over from a leader that died.
// Default: 10 s.
func WithSchedulerTTL(d time.Duration) SchedulerOption {
	return func(ls *leadership) { ls.rule.TTL = d }
}

// WithSchedulerBase sets the options from which RunScheduler makes the options for build. The
// PreEnqueueFunc in base is called for the ticks that are enqueued.
func WithSchedulerBase(base asynq.SchedulerOpts) SchedulerOption {
	return func(ls *leadership) { ls.base = base }
}

// WithSchedulerClient enqueues ticks through c. The tasks of these ticks carry the trace of
// RunScheduler's ctx and the fence of the leader. A tick of a rule with [Unique] is not enqueued
// while the task of an earlier tick exists. For a tick that is not enqueued, PostEnqueueFunc gets
// asynq.ErrDuplicateTask. asynq's history of the schedule does not show ticks that c enqueued.
func WithSchedulerClient(c *Client) SchedulerOption {
	return func(ls *leadership) {
		ls.client = c
		if c == nil {
			ls.refused = errors.New("WithSchedulerClient(nil); give the client that Guard.Client returns, or leave the option out")
		}
	}
}

// WithCatchUp makes up ticks that were due while no process led, or while Redis could not be
// reached. The next leader enqueues each such tick at once, if the tick was due less than window
// ago. The last slot of each entry is kept in the scheduler's Redis, in a hash named
// asynqlock:ticks:{SCHEDULE}, where SCHEDULE is the [WithSchedulerKey]. Schedules that share a
// Redis need different keys. An entry is identified by its spec, its task and its options. A tick
// is not made up if it was due before any leader had the entry of this tick. If a process is killed
// while it enqueues a tick, the tick is enqueued exactly once.
//
// The task of a tick has a TaskID made of entry and slot, unless the entry has a TaskID or the rule
// has [Unique]. The task also has a Retention of at least a minute. The completed task is kept for
// that time, so that its tick is not enqueued again. asynq's history of the schedule does not show
// such ticks. An entry "@every 30s" ticks once for each 30 s since its last tick, also when the
// leader changes.
func WithCatchUp(window time.Duration) SchedulerOption {
	return func(ls *leadership) {
		ls.window = window
		if window < time.Second {
			ls.refused = fmt.Errorf("WithCatchUp(%v); give at least 1s, or leave it out", window)
		}
	}
}

// WithOnLeading calls f when this process begins to lead, and when this process no longer leads. f
// must return quickly. The log and the metadata of the schedule's lock also name the leader, as
// HOST:PID.
func WithOnLeading(f func(leads bool)) SchedulerOption {
	return func(ls *leadership) { ls.onLeading = f }
}

// WithSchedulerLogger sets the logger to which a leader logs the beginning and the end of its term,
// and the ticks that it makes up. Default: slog.Default.
func WithSchedulerLogger(l *slog.Logger) SchedulerOption {
	return func(ls *leadership) { ls.logger = l }
}

// scheduler is a Scheduler or a PeriodicTaskManager.
type scheduler interface {
	Start() error
	Shutdown()
}

// leadership holds the arguments of RunScheduler.
type leadership struct {
	locker    locker.Locker
	rule      locker.Rule
	base      asynq.SchedulerOpts
	build     func(*asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error)
	client    *Client // nil: the scheduler enqueues its ticks itself
	window    time.Duration
	onLeading func(bool)
	logger    *slog.Logger
	refused   error // the error of an option
}

// runLeader runs a scheduler while this process leads.
func runLeader(ctx context.Context, l locker.Locker, caller string, opts []SchedulerOption, build func(*asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error)) error {
	if typednil.Is(l) {
		return fmt.Errorf("asynqlock: %s: the Locker is nil; make one with locker.New, and check its error", caller)
	}
	ls := &leadership{
		locker: l, build: build, logger: slog.Default(), onLeading: func(bool) {},
		rule: locker.Rule{Key: "asynq-scheduler", Name: "asynq-scheduler"},
	}
	for i, o := range opts {
		if o == nil {
			return fmt.Errorf("asynqlock: %s: option %d is nil; leave it out instead", caller, i+1)
		}
		o(ls)
	}
	if ls.refused != nil {
		return fmt.Errorf("asynqlock: %s: %w", caller, ls.refused)
	}
	return lead.Run(ctx, l, ls.rule, func(ctx context.Context) error {
		if err := ls.serve(ctx); err != nil {
			return fmt.Errorf("asynqlock: %s: %w", caller, err)
		}
		return nil
	}, lead.WithLogger(ls.logger))
}

// serve runs a scheduler until ctx ends, which is when the caller's context or the lock ends.
func (ls *leadership) serve(ctx context.Context) error {
	lease, _ := locker.FromContext(ctx)
	t := &term{leadership: ls, ctx: ctx, lease: lease, claims: make(map[string]func() bool)}
	if err := t.takeSlot("asynq-tick:" + ls.rule.Key); errors.Is(err, locker.ErrInvalidRule) {
		return fmt.Errorf("no tick can be claimed: %w", err)
	}
	s, inner, err := ls.build(t.options())
	if err != nil {
		return err
	}
	if err := t.examine(inner); err != nil {
		return err
	}
	if err := s.Start(); err != nil {
		return err
	}
	ls.onLeading(true)
	defer func() {
		s.Shutdown()
		ls.onLeading(false)
	}()
	if made := t.catchUp.Load(); made != nil {
		made.run(ctx)
	}
	<-ctx.Done()
	return nil
}

// examine refuses a scheduler that does not call the PreEnqueueFunc of its options. It also
// prepares WithCatchUp.
func (t *term) examine(s *asynq.Scheduler) error {
	hook, err := unexported[func(*asynq.Task, []asynq.Option)](s, "preEnqueueFunc")
	switch {
	case err != nil:
		return err
	case hook == nil:
		return errors.New("build made the scheduler without the given options; without these options, each tick can be enqueued twice")
	case !t.callsPreEnqueue(hook):
		return errors.New("build replaced the given PreEnqueueFunc, and its own function does not call the given one, so each tick can be enqueued twice; " +
			"give your own function with WithSchedulerBase")
	case t.window == 0:
		return nil
	}
	made, err := newCatchUp(t, s)
	t.catchUp.Store(made)
	return err
}

// callsPreEnqueue reports whether hook calls the PreEnqueueFunc that build was given. To find out,
// it calls hook with the probe, which is never enqueued.
func (t *term) callsPreEnqueue(hook func(*asynq.Task, []asynq.Option)) bool {
	called := make(chan bool, 1)
	go func() {
		defer func() { called <- t.probed.Load() }()
		hook(t.probe, nil) // if hook calls the PreEnqueueFunc that build was given, that function ends this goroutine
	}()
	return <-called
}
