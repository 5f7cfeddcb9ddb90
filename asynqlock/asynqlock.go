package asynqlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
)

// New returns a Guard for the tasks that its rules match: see [On]. Three calls put it to work:
//
//	mux.Use(g.Middleware)
//	server := asynq.NewServerFromRedisClient(rdb, g.Configure(asynq.Config{Concurrency: 10}))
//	err = g.Run(ctx, server, mux)
//
// A task whose key is busy does not wait in its worker, unless its rule has [Wait]. It is refused:
// put off, without the use of a retry, or dropped or archived, as its rule says. While Redis does
// not answer, it is put off.
//
// New finds every mistake that can be found when the program starts. Its error explains what to
// change.
func New(l locker.Locker, opts ...Option) (*Guard, error) {
	if l == nil {
		return nil, errors.New("asynqlock: New: the Locker is nil; make one with locker.New, and check its error")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	for _, r := range cfg.rules {
		if err := r.check(l); err != nil {
			return nil, err
		}
		if r.lock.Limit == 0 && r.lock.Mode == locker.Exclusive {
			r.lock = exclusive.Rule(l, r.lock) // the Locker would fill in its own limit, and let several tasks of a key run together
		}
	}
	g := &Guard{config: cfg, locker: l}
	g.stopped, g.stop = context.WithCancel(context.Background())
	if cfg.wakes {
		g.waker = &waker{lines: lines{redis: cfg.redis, prefix: cfg.prefix + "asynqlock:"}, inspector: asynq.NewInspectorFromRedisClient(cfg.redis)}
	}
	return g, nil
}

// A Guard runs tasks under locks. [New] returns a Guard. A Guard is safe for concurrent use, and
// can guard the tasks of any number of servers.
type Guard struct {
	config
	locker  locker.Locker
	waker   *waker          // nil without WithWaking
	stopped context.Context // ends with Stop
	stop    context.CancelFunc
	warned  sync.Once // logs once that a server is not configured
}

// Middleware guards the tasks of a mux: mux.Use(g.Middleware). A task that no rule matches goes to
// next unchanged. A guarded task ends in one of these ways:
//
//	the handler ran, the lock was held    with the result of the handler
//	the handler ran, the lock was lost    with a Problem, lock-lost, beside the handler's result
//	the handler did not run               with a Problem: the reason, and what happens to the task
//	the handler panicked                  the panic continues after the release
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
	wait    time.Duration // the wait of the next attempt
	lock    locker.Rule   // the Rule of the last attempt

	staying bool // the task waits in its worker, because it cannot be put off

	inLine   bool  // the task has a place in the line of its key
	front    front // what the task found there
	leftLine bool  // the task gave up its place
	followed bool  // others waited behind the task when it left the line
	found    front // what was in the line before the release
	gaveBack bool  // the task got the key, and gave it back to the first of the line

	overlaps   bool          // in the last attempt, the task's earlier run had the key
	ran        bool          // the handler was called
	lease      *locker.Lease // the lease of the handler's run
	handlerErr error         // what the handler returned
}

// process runs the task under its lock. If the task cannot run, process returns a Problem.
func (j *job) process(ctx context.Context) error {
	if err := j.derive(ctx); err != nil {
		return j.problem(err)
	}
	if j.delivered {
		j.guard.warnUnconfigured(ctx)
	}
	defer j.callNext(ctx)
	ctx, end := j.observe(ctx)
	out := locker.Outcome{Result: resultFailed, Err: errPanicked}
	defer func() { end(out) }()
	err := j.deliver(ctx)
	out = j.outcome(err)
	return err
}

// opProcess is the processing of a task, from its delivery until the Guard is done with it. Its
// result is one of the following words, or the Verdict on a task whose handler did not run.
const opProcess locker.Op = "process"

const (
	resultProcessed locker.Result = "processed" // the handler succeeded
	resultFailed    locker.Result = "failed"    // the handler failed or panicked, or lost the lock
)

var errPanicked = errors.New("the handler has panicked, or has ended its goroutine")

// observe notifies the Locker's Observer, if it has one, that the task is being processed.
func (j *job) observe(ctx context.Context) (context.Context, func(locker.Outcome)) {
	if l, ok := j.guard.locker.(interface {
		Observe(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome))
	}); ok {
		return l.Observe(ctx, opProcess, j.lock)
	}
	return ctx, func(locker.Outcome) {}
}

// outcome returns the Outcome of the processing, which ended with err.
func (j *job) outcome(err error) locker.Outcome {
	p, _ := errors.AsType[*Problem](err)
	switch {
	case err == nil:
		return locker.Outcome{Result: resultProcessed}
	case j.ran || p == nil:
		return locker.Outcome{Result: resultFailed, Err: err}
	default: // the acquire's own span says why
		return locker.Outcome{Result: locker.Result(p.Verdict)}
	}
}

// deliver makes attempts until the handler has run or the task is given up. After a failed attempt,
// the task stays in its worker for another attempt only if asynq would count a retry otherwise.
func (j *job) deliver(ctx context.Context) error {
	for {
		err := j.attempt(ctx)
		if j.ran {
			return j.runResult(ctx)
		}
		p := j.problem(err)
		if p.Verdict == Snoozed && j.mayPutOff(ctx) {
			if j.mustLookAgain(ctx, p) {
				continue
			}
			if j.putOff(ctx, p) {
				return p
			}
		}
		j.leaveLine(ctx)
		if p.Verdict != Snoozed {
			return p
		}
		if !j.stay(ctx, p) {
			return j.giveUpProblem(ctx, p)
		}
		j.staying = true
		j.lock.Wait = shortenWait(ctx, j.wait)
	}
}

// attempt runs the handler under the lock, if it is the task's turn.
func (j *job) attempt(ctx context.Context) error {
	j.overlaps = false
	if !j.isItsTurn(ctx) {
		return j.queuedError()
	}
	if j.mustName() {
		return j.runNamed(ctx)
	}
	return j.run(ctx)
}

// discards reports whether the task is dropped or archived when its key is busy.
func (j *job) discards() bool { return j.mustName() && !j.ranBefore }

// mustName reports whether the lease must name the task, because the next delivery of the task may
// be dropped or archived. A delivery that has met the task's own earlier run is not discarded. But
// asynq does not keep this, so the delivery after it could be.
func (j *job) mustName() bool { return j.rule.busy != Snoozed && j.delivered && j.retried == 0 }

// run calls the handler under the lock. Guard.Stop ends the wait for the lock, but not the handler.
func (j *job) run(ctx context.Context) error {
	if j.guard.stopped.Err() != nil {
		j.lock.Wait = locker.NoWait
	}
	handle := func(ctx context.Context) error {
		if j.mustGiveBack(ctx) {
			return j.queuedError()
		}
		j.ran = true
		j.lease, _ = locker.FromContext(ctx)
		j.leaveLine(ctx)
		began := time.Now()
		j.handlerErr = j.next.ProcessTask(ctx, j.task)
		j.beforeRelease(ctx, began)
		return j.handlerErr
	}
	if j.lock.Wait == locker.NoWait {
		return locker.Run(ctx, j.guard.locker, j.lock, handle)
	}
	return j.waitAndRun(ctx, handle)
}

// waitAndRun calls handle under the lock, for a task that waits for its lock. Guard.Stop can end
// the wait, but only before the handler begins.
func (j *job) waitAndRun(ctx context.Context, handle func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// goOn reports, once, whether Stop has not ended the wait.
	goOn := context.AfterFunc(j.guard.stopped, cancel)
	waits := true
	err := locker.Run(ctx, j.guard.locker, j.lock, func(ctx context.Context) error {
		waits = false
		if !goOn() {
			return errStopped
		}
		return handle(ctx)
	})
	if waits && !goOn() {
		return errors.Join(errStopped, err)
	}
	return err
}

// runResult returns the result of a task whose handler has run: the handler's error, or a Problem.
func (j *job) runResult(ctx context.Context) error {
	err := j.lease.Release(ctx) // the lease is released already; this second call only returns the outcome
	if !errors.Is(err, locker.ErrLost) && !errors.Is(err, locker.ErrExpired) {
		// The work succeeded. With Once, an unclear release may not have recorded the success. The
		// task still counts as done, because a second run would be worse than a missing record. The
		// trace shows the unclear release.
		return j.handlerErr
	}
	p := ruling{code: CodeLost, verdict: Failed}.problem(j, err)
	if j.handlerErr == nil {
		return p
	}
	return errors.Join(j.handlerErr, p)
}

// errStopped is the error of waits that Guard.Stop ends.
var errStopped = errors.New("the Guard was stopped, because this process stops")

// Stop ends the waits of tasks for their keys. These tasks are put off without using a retry, so
// that another process runs them. A task that cannot be put off stays in its worker until the
// server's ShutdownTimeout is over. Then asynq requeues the task. Running handlers continue. A task
// that the server starts after Stop gets its lock if the lock is free.
//
// Call Stop before the Shutdown of the Guard's servers, or let [Guard.Run] do both. Otherwise
// Shutdown waits for the tasks that wait for their keys. Stop returns when the Guard's goroutines
// have ended, or when ctx ends.
func (g *Guard) Stop(ctx context.Context) error {
	g.stop()
	if g.waker == nil {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.waker.stop()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run runs a server until ctx ends. Then it stops the Guard and shuts the server down. A stopped
// Guard puts off every task whose key is busy, and never waits. So use one Guard only for servers
// that stop together.
func (g *Guard) Run(ctx context.Context, server *asynq.Server, handler asynq.Handler) error {
	if err := server.Start(handler); err != nil {
		return err
	}
	<-ctx.Done()
	_ = g.Stop(context.WithoutCancel(ctx)) // needs no time limit, because the Guard's goroutines end as soon as their calls to Redis have ended
	server.Shutdown()
	return nil
}
