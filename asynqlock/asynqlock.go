package asynqlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// New returns a Guard for the tasks that its rules name: see [On]. Its error says what to change.
// Whatever can be found wrong when the program starts is found here.
func New(l locker.Locker, opts ...Option) (*Guard, error) {
	if isNil(l) {
		return nil, errors.New("asynqlock: New: the Locker is nil; make one with locker.NewSingle, and check its error")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	g := &Guard{config: cfg, locker: l}
	g.stopped, g.stop = context.WithCancel(context.Background())
	if cfg.redis != nil {
		g.waker = &waker{
			lines:     lines{redis: cfg.redis, prefix: cfg.prefix + "asynqlock:"},
			inspector: g.inspector, locker: l, ctx: g.stopped, keys: make(map[string]*interest),
		}
	}
	return g, nil
}

// A Guard runs tasks under locks. [New] returns one. It is safe for concurrent use, and serves any
// number of servers.
type Guard struct {
	config
	locker  locker.Locker
	waker   *waker // nil without WithWaking
	blind   atomic.Bool
	stopped context.Context // ends with Stop
	stop    context.CancelFunc
	warned  sync.Once // that a server is not configured
}

// Middleware guards the tasks of a mux: mux.Use(g.Middleware). Tasks that no rule names run as if
// it was not there. How a guarded task ends:
//
//	the handler ran, the lock was held    what the handler returned
//	the handler ran, the lock was lost    a Problem, lock-lost, beside what the handler returned
//	the handler did not run               a Problem that says why, and what becomes of the task
//	the handler panicked                  the panic goes on, after the release
//
// The lock is held until the handler has returned, also when asynq has given the run up: asynq
// starts a task again when the task's time is over or the task's lease was lost, and does not wait
// for the handler that is still at work.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		if g.propagator != nil {
			ctx = g.propagator.Extract(ctx, t.Headers())
		}
		r := g.rules.match(t.Type())
		if r == nil {
			return next.ProcessTask(ctx, t)
		}
		j := job{guard: g, rule: r, next: next, wait: r.wait, arrived: time.Now()}
		j.read(ctx, t)
		return j.process(ctx)
	})
}

// job is one delivery of a task.
type job struct {
	message
	guard   *Guard
	rule    *rule
	next    asynq.Handler
	arrived time.Time
	wait    time.Duration // of the next attempt
	lock    locker.Rule   // of the last attempt

	staying bool // the task waits in its worker, because it cannot be put off
	counted bool // the waker counts this delivery
	called  bool // the task is at the front of the line of its key since an earlier delivery
	ahead   int  // how many tasks were before it in the line of its key, when it asked
	inLine  bool // the task has a place in the line,
	left    bool // had one and gave it up,
	line    bool // and there were other tasks in it

	ran    bool          // the handler was called,
	began  time.Time     // then,
	lease  *locker.Lease // under this,
	failed error         // and returned that
}

// process runs the task under its lock, or says what becomes of it.
func (j *job) process(ctx context.Context) error {
	if err := j.derive(ctx); err != nil {
		return j.problem(err)
	}
	if j.known {
		j.guard.warnUnconfigured(ctx)
	}
	w := j.guard.waker
	if w == nil || !j.known {
		return j.deliver(ctx)
	}
	if !w.enter(j.lock.Key, j.queues() && j.wait == locker.NoWait && j.lock.Mode == locker.Exclusive) {
		if !j.isCalled(ctx) {
			p := j.problem(j.behind())
			if j.putOff(ctx, p) {
				return p
			}
			j.leaveLine(ctx)
			j.staying = true
		}
		w.enter(j.lock.Key, false)
	}
	j.counted = true
	defer func() { w.exit(j.lock, j.ran || j.left, j.line) }()
	return j.deliver(ctx)
}

// deliver makes attempts until the handler has run, or the task is to be left. There is more than
// one attempt only where asynq would count the first against the task's retries.
func (j *job) deliver(ctx context.Context) error {
	for {
		err := j.attempt(ctx)
		if j.ran {
			return j.concluded(ctx)
		}
		p := j.problem(err)
		if p.Verdict != Snoozed {
			j.leaveLine(ctx)
			j.endUnique(ctx, p.Verdict == Dropped)
			return p
		}
		if j.putOff(ctx, p) {
			return p
		}
		j.leaveLine(ctx)
		if !j.stay(ctx, p) {
			return j.givenUp(ctx, p)
		}
		j.staying = true
		if err := j.derive(ctx); err != nil {
			return j.problem(err)
		}
	}
}

// attempt runs the handler under the lock, if it is the task's turn.
func (j *job) attempt(ctx context.Context) error {
	if !j.isItsTurn(ctx) {
		return j.behind()
	}
	switch {
	case !j.throwsAway():
		return j.run(ctx, func(context.Context) {})
	case j.lock.AtLeast > 0 || j.lock.Mode == locker.Shared || j.lock.Metadata != "" || j.guard.blind.Load():
		return j.beside(ctx)
	default:
		return j.named(ctx)
	}
}

// throwsAway says whether the task is dropped or archived when its key is busy.
func (j *job) throwsAway() bool { return j.rule.busy != Snoozed && j.known && !j.before }

// run calls prepare, and then the handler, under the lock. The wait for the lock ends with
// Guard.Stop, the handler does not.
func (j *job) run(ctx context.Context, prepare func(context.Context)) error {
	if j.guard.stopped.Err() != nil {
		j.lock.Wait = locker.NoWait
	}
	handle := func(ctx context.Context) error {
		j.ran, j.began = true, time.Now()
		j.lease, _ = locker.FromContext(ctx)
		prepare(ctx)
		j.leaveLine(ctx)
		j.failed = j.next.ProcessTask(ctx, j.task)
		return j.failed
	}
	if j.lock.Wait == locker.NoWait {
		return locker.Run(ctx, j.guard.locker, j.lock, handle)
	}
	return j.waitAndRun(ctx, handle)
}

// waitAndRun is run for a task that waits. Either Guard.Stop ends the wait, or the handler begins.
func (j *job) waitAndRun(ctx context.Context, handle func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var decided, stopped atomic.Bool
	defer context.AfterFunc(j.guard.stopped, func() {
		if decided.CompareAndSwap(false, true) {
			stopped.Store(true)
			cancel()
		}
	})()
	err := locker.Run(ctx, j.guard.locker, j.lock, func(ctx context.Context) error {
		if !decided.CompareAndSwap(false, true) {
			return errStopped
		}
		return handle(ctx)
	})
	if stopped.Load() {
		return errors.Join(errStopped, err)
	}
	return err
}

// concluded says how a task ended whose handler has run.
func (j *job) concluded(ctx context.Context) error {
	j.endUnique(ctx, j.failed == nil)
	err := j.lease.Release(ctx) // it has been released: this says how that went
	if !errors.Is(err, locker.ErrLost) && !errors.Is(err, locker.ErrExpired) {
		// The work succeeded. With Once nobody knows yet whether that will be remembered, but to
		// repeat the work would be the larger mistake. The release is in the trace.
		return j.failed
	}
	p := lost.problem(j, err)
	if j.failed == nil {
		return p
	}
	return errors.Join(j.failed, p)
}
