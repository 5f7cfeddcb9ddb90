package asynqlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
)

// RunScheduler runs a scheduler in one of several processes: in the leader, which holds the lock of
// the schedule. Call RunScheduler in all of these processes. The other processes wait. When the
// leader stops, another process takes over at once. When the leader dies, another process takes
// over after the lock's TTL.
//
// The fields of rule: Key is "asynq-scheduler" if it is empty. Schedules with different leaders
// need different keys. TTL is 10 s if it is not set. [lead.New] describes the other fields. Mode,
// Limit and Weight are ignored: there is one leader, also with a Locker of locker.NewSemaphore.
//
// RunScheduler calls build at the beginning of each term, because a stopped scheduler cannot be
// started again. build must make the scheduler with the given options. A PeriodicTaskManager has
// them in PeriodicTaskManagerOpts.SchedulerOpts. build may also set options that are empty. Give
// your own PreEnqueueFunc to [WithSchedulerBase]. If build sets another PreEnqueueFunc, this
// function must call the given function. RunScheduler checks this once, with a task
// "asynqlock:probe". For example:
//
//	build := func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
//		s := asynq.NewScheduler(redis, opts)
//		_, err := s.Register("0 3 * * *", asynq.NewTask("report:nightly", nil))
//		return s, err
//	}
//	err := asynqlock.RunScheduler(ctx, l, locker.Rule{}, build)
//
// RunScheduler returns nil when ctx ends. It returns an error if build fails, if the scheduler does
// not start, or if the Locker is closed or does not support the rule. While the lock server cannot
// be reached, RunScheduler tries again.
//
// No tick is enqueued twice. The options' PreEnqueueFunc lets a tick pass only if this process
// still holds the lock by its own clock. So a process that was paused for too long does not enqueue
// its late ticks. Each tick also claims its slot, which is made of the task, its options and the
// second. So if the clocks of the old and the new leader differ, only one of the leaders enqueues
// the tick. Ticks that are due while no process leads are lost. A rare job should therefore tick
// several times, and have a rule with [Once]: see docs/asynq.md.
func RunScheduler[S *asynq.Scheduler | *asynq.PeriodicTaskManager](
	ctx context.Context, l locker.Locker, rule locker.Rule, build func(opts *asynq.SchedulerOpts) (S, error), opts ...SchedulerOption,
) error {
	rule.Key = cmp.Or(rule.Key, "asynq-scheduler")
	rule.Name = cmp.Or(rule.Name, "asynq-scheduler")
	ls := &leadership{locker: l, rule: rule, logger: slog.Default(), onLeading: func(bool) {}}
	ls.build = func(o *asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error) {
		s, err := build(o)
		if err != nil {
			return nil, nil, err
		}
		if s == nil {
			return nil, nil, errors.New("build returned no scheduler")
		}
		inner, ok := any(s).(*asynq.Scheduler)
		if !ok {
			inner, err = unexported[*asynq.Scheduler](s, "s")
		}
		return any(s).(scheduler), inner, err
	}
	if err := ls.run(ctx, opts); err != nil {
		return fmt.Errorf("asynqlock: RunScheduler: %w", err)
	}
	return nil
}

// A SchedulerOption sets up [RunScheduler].
type SchedulerOption func(*leadership)

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
	return func(ls *leadership) { ls.client = c }
}

// WithOnLeading calls f when this process begins to lead, and when this process no longer leads. f
// must return quickly. The log and the metadata of the schedule's lock also name the leader, as
// HOST:PID.
func WithOnLeading(f func(leads bool)) SchedulerOption {
	return func(ls *leadership) { ls.onLeading = f }
}

// WithSchedulerLogger sets the logger to which a leader logs the beginning and the end of its term.
// Default: slog.Default.
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
	onLeading func(bool)
	logger    *slog.Logger
}

// run runs a scheduler while this process leads.
func (ls *leadership) run(ctx context.Context, opts []SchedulerOption) error {
	for _, o := range opts {
		o(ls)
	}
	if err := locker.Check(ls.locker, ls.slotRule("")); err != nil {
		return fmt.Errorf("no tick can be claimed: %w", err)
	}
	return lead.Run(ctx, ls.locker, exclusive.Rule(ls.locker, ls.rule), ls.serve, lead.WithLogger(ls.logger))
}

// serve runs a scheduler until ctx ends, which is when the caller's context or the lock ends.
func (ls *leadership) serve(ctx context.Context) error {
	lease, _ := locker.FromContext(ctx)
	t := &term{leadership: ls, ctx: ctx, lease: lease, claims: make(map[string]func() bool)}
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
	<-ctx.Done()
	return nil
}

// examine refuses a scheduler that does not call the PreEnqueueFunc of its options.
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
	}
	return nil
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
