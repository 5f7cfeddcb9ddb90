package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// RunScheduler runs a scheduler in one of several processes: in the one that holds the lock of the
// schedule. Call it in all of them. The other processes wait. When the leader stops, one of them
// takes over at once; when the leader dies, after its TTL. build is called at the beginning of each
// term, because a scheduler that was stopped cannot be started again. It must make the scheduler
// with the options that it is given. It may set options that are not set. A PreEnqueueFunc of yours
// belongs into [SchedulerBase]; one that build sets must call the one that was there, which is
// tried once with a task "asynqlock:probe":
//
//	build := func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
//		s := asynq.NewScheduler(redis, opts)
//		_, err := s.Register("0 3 * * *", asynq.NewTask("report:nightly", nil))
//		return s, err
//	}
//	err := asynqlock.RunScheduler(ctx, l, build, asynqlock.CatchUp(6*time.Hour))
//
// It returns when ctx ends, with nil, or with the error of build, of the scheduler's start, or of a
// Locker that cannot do that or was closed. While the lock server cannot be reached it goes on
// trying.
//
// No tick comes twice. The options' PreEnqueueFunc lets a tick pass only while the lock is held by
// this process' own clock, so a process that was stopped for too long finds out before its late
// ticks do harm. And each tick claims its slot, made of the task, its options and the second, so
// that processes whose clocks differ do not both enqueue it when one takes over from the other.
// Ticks that are due while no process leads are lost, unless [CatchUp] makes them up.
func RunScheduler(ctx context.Context, l locker.Locker, build func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error), opts ...SchedulerOption) error {
	if build == nil {
		return errors.New("asynqlock: RunScheduler: build is nil; give a function that makes the scheduler")
	}
	return lead(ctx, l, "RunScheduler", opts, func(o *asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error) {
		s, err := build(o)
		if err == nil && s == nil {
			err = errors.New("build returned no scheduler")
		}
		return s, s, err
	})
}

// RunPeriodicTaskManager is [RunScheduler] for a scheduler whose entries come from a
// PeriodicTaskConfigProvider. The options that build is given belong into
// PeriodicTaskManagerOpts.SchedulerOpts.
func RunPeriodicTaskManager(ctx context.Context, l locker.Locker, build func(opts *asynq.SchedulerOpts) (*asynq.PeriodicTaskManager, error), opts ...SchedulerOption) error {
	if build == nil {
		return errors.New("asynqlock: RunPeriodicTaskManager: build is nil; give a function that makes the manager")
	}
	return lead(ctx, l, "RunPeriodicTaskManager", opts, func(o *asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error) {
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

// SchedulerKey sets the key of the schedule's lock. Schedules that are led apart need different
// ones. Default: "asynq-scheduler".
func SchedulerKey(key string) SchedulerOption { return func(ls *leadership) { ls.rule.Key = key } }

// SchedulerTTL sets how long the others wait for a leader that died. Default: 10 s.
func SchedulerTTL(d time.Duration) SchedulerOption { return func(ls *leadership) { ls.rule.TTL = d } }

// SchedulerBase sets the options that build's are made of. Its PreEnqueueFunc is called for the
// ticks that pass.
func SchedulerBase(base asynq.SchedulerOpts) SchedulerOption {
	return func(ls *leadership) { ls.base = base }
}

// SchedulerClient enqueues ticks through c. So they carry the trace of RunScheduler's ctx and the
// fence of the leader, and a tick of a rule with [Unique] is not enqueued while the task of an
// earlier tick exists: PostEnqueueFunc gets asynq.ErrDuplicateTask then. asynq's history of the
// schedule does not show such ticks.
func SchedulerClient(c *Client) SchedulerOption {
	return func(ls *leadership) {
		ls.client = c
		if c == nil {
			ls.refused = errors.New("SchedulerClient(nil); give what Guard.Client returns, or leave it out")
		}
	}
}

// CatchUp makes up ticks that were due when no process led, or when Redis could not be reached: the
// next leader enqueues each of them, at once, if it was due less than window ago. The last slot of
// each entry is kept in the scheduler's Redis, in a hash named asynqlock:ticks:{SCHEDULE}, SCHEDULE
// being the [SchedulerKey]; schedules that share a Redis need different ones. An entry is known by
// its spec, its task and its options. What was due before the first leader has seen an entry is not
// made up. A process that is killed while it enqueues a tick neither loses nor doubles the tick.
//
// The ticks have a TaskID made of entry and slot, unless the entry has a TaskID or the rule has
// [Unique], and a Retention of at least a minute: they are kept as completed for that long, so that
// they are not enqueued again. asynq's history of the schedule does not show them. An entry "@every
// 30s" ticks once for each 30 s since its last tick, whoever leads.
func CatchUp(window time.Duration) SchedulerOption {
	return func(ls *leadership) {
		ls.window = window
		if window < time.Second {
			ls.refused = fmt.Errorf("CatchUp(%v); give at least 1s, or leave it out", window)
		}
	}
}

// OnLeading calls f when this process begins to lead, and when it has ended to. f must return
// quickly. Whoever leads is in the log as well, and in the metadata of the schedule's lock, as
// HOST:PID.
func OnLeading(f func(leads bool)) SchedulerOption { return func(ls *leadership) { ls.onLeading = f } }

// SchedulerLogger sets where a leader logs that its term begins or ends, and what it makes up.
// Default: slog.Default.
func SchedulerLogger(l *slog.Logger) SchedulerOption { return func(ls *leadership) { ls.logger = l } }

// scheduler is a Scheduler or a PeriodicTaskManager.
type scheduler interface {
	Start() error
	Shutdown()
}

// leadership is what RunScheduler was given.
type leadership struct {
	locker    locker.Locker
	rule      locker.Rule
	base      asynq.SchedulerOpts
	build     func(*asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error)
	client    *Client // nil: the scheduler's own
	window    time.Duration
	onLeading func(bool)
	logger    *slog.Logger
	refused   error // what is wrong with an option
}

// lead serves one term after the other.
func lead(ctx context.Context, l locker.Locker, caller string, opts []SchedulerOption, build func(*asynq.SchedulerOpts) (scheduler, *asynq.Scheduler, error)) error {
	if isNil(l) {
		return fmt.Errorf("asynqlock: %s: the Locker is nil; make one with locker.NewSingle, and check its error", caller)
	}
	host, _ := os.Hostname()
	ls := &leadership{
		locker: l, build: build, logger: slog.Default(), onLeading: func(bool) {},
		rule: locker.Rule{Key: "asynq-scheduler", Name: "asynq-scheduler", TTL: 10 * time.Second, Metadata: host + ":" + strconv.Itoa(os.Getpid())},
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
	for {
		var own error
		err := locker.Run(ctx, l, ls.rule, func(ctx context.Context) error {
			own = ls.serve(ctx)
			return own
		})
		switch {
		case own != nil:
			return fmt.Errorf("asynqlock: %s: %w", caller, own)
		case ctx.Err() != nil:
			return nil //nolint:nilerr // that is how it ends when all is well
		case errors.Is(err, locker.ErrClosed), errors.Is(err, locker.ErrInvalidKey), errors.Is(err, locker.ErrInvalidRule), errors.Is(err, locker.ErrUnsupported):
			return err
		}
		sleep(ctx, betweenTerms)
	}
}

// betweenTerms keeps a process that lost the lock, or cannot reach the lock server, from trying
// without a pause.
const betweenTerms = 500 * time.Millisecond

// serve runs a scheduler until ctx ends, with the caller's ctx or with the lock.
func (ls *leadership) serve(ctx context.Context) error {
	lease, _ := locker.FromContext(ctx)
	t := &term{leadership: ls, ctx: ctx, lease: lease, claims: make(map[string]func() bool)}
	if err := t.take("asynq-tick:" + ls.rule.Key); errors.Is(err, locker.ErrInvalidRule) {
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
	ls.logger.Info("latchkit: asynqlock: this process leads the schedule", "schedule", ls.rule.Key, "process", ls.rule.Metadata, "fence", lease.Fence())
	ls.onLeading(true)
	defer func() {
		s.Shutdown()
		ls.logger.Info("latchkit: asynqlock: this process has ended to lead the schedule", "schedule", ls.rule.Key, "process", ls.rule.Metadata, "fence", lease.Fence(), "cause", context.Cause(ctx))
		ls.onLeading(false)
	}()
	if made := t.made.Load(); made != nil {
		made.run(ctx)
	}
	<-ctx.Done()
	return nil
}

// examine refuses a scheduler that would not ask whether its ticks may pass, and prepares what
// CatchUp needs.
func (t *term) examine(s *asynq.Scheduler) error {
	hook, err := unexported[func(*asynq.Task, []asynq.Option)](s, "preEnqueueFunc")
	switch {
	case err != nil:
		return err
	case hook == nil:
		return errors.New("build made the scheduler without the options that it was given; without them ticks come twice")
	case !t.asks(hook):
		return errors.New("build replaced the PreEnqueueFunc of the options that it was given, and its own does not call it; without it ticks come twice; " +
			"give yours by SchedulerBase")
	case t.window == 0:
		return nil
	}
	made, err := newCatchUp(t, s)
	t.made.Store(made)
	return err
}

// asks says whether hook calls the function that was in the options for build. It announces a tick
// that nobody enqueues.
func (t *term) asks(hook func(*asynq.Task, []asynq.Option)) bool {
	called := make(chan bool, 1)
	go func() {
		defer func() { called <- t.probed.Load() }()
		hook(t.probe, nil) // ends this goroutine, if it asks
	}()
	return <-called
}
