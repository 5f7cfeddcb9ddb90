package asynqlock

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// New returns a Guard for the tasks that its rules name: see [On]. Its error says what to change; nothing is found wrong
// later that could have been found now.
func New(l locker.Locker, opts ...Option) (*Guard, error) {
	if isNil(l) {
		return nil, errors.New("asynqlock: New: the Locker is nil; make one with locker.NewSingle, and check its error")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return &Guard{config: cfg, guard: locker.Guard[*job]{Locker: l, Rule: derive}}, nil
}

// A Guard runs tasks under locks. [New] returns one; it is safe for concurrent use and serves any number of servers.
type Guard struct {
	config
	guard locker.Guard[*job]
}

// Middleware guards the tasks of a mux, which it is given by mux.Use(g.Middleware). Tasks that no rule names run as if it
// was not there. How a guarded one ends:
//
//	the handler ran, the lock was held    what the handler returned
//	the handler ran, the lock was lost    a Problem, lock-lost, beside what the handler returned
//	the handler did not run               a Problem that says why, and what becomes of the task
//	the handler panicked                  the panic goes on, after the release
//
// The lock is held until the handler has returned, however long asynq has given up on it: asynq starts a task again when its
// time is over or its lease was lost, and does not wait for the handler that is still at work.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		if g.propagator != nil {
			ctx = g.propagator.Extract(ctx, t.Headers())
		}
		r := g.rules.match(t.Type())
		if r == nil {
			return next.ProcessTask(ctx, t)
		}
		j := job{guard: g, rule: r, next: next, wait: r.wait}
		j.read(ctx, t)
		return j.process(ctx)
	})
}

// job is one delivery of a task.
type job struct {
	message
	guard *Guard
	rule  *rule
	next  asynq.Handler
	wait  time.Duration // of the next attempt
	lock  locker.Rule   // of the last one

	ran    bool          // the handler was called,
	began  time.Time     // then,
	lease  *locker.Lease // under this,
	failed error         // and returned that
}

// process makes attempts until the handler has run, or the task is to be left. There is more than one only where asynq would
// count the first against the task's retries.
func (j *job) process(ctx context.Context) error {
	for {
		err := j.attempt(ctx)
		if j.ran {
			return j.concluded(ctx)
		}
		p := j.problem(err)
		if p.Verdict != Snoozed || j.mayReturn(ctx) || j.moved(ctx, p) {
			return p
		}
		if !j.stay(ctx, p) {
			return j.givenUp(ctx, p)
		}
	}
}

// attempt runs the handler under the lock.
func (j *job) attempt(ctx context.Context) error {
	if j.rule.busy == Snoozed || !j.known || j.before {
		return j.run(ctx, func(context.Context) {})
	}
	return j.beside(ctx)
}

// run calls prepare, and then the handler, under the lock.
func (j *job) run(ctx context.Context, prepare func(context.Context)) error {
	return j.guard.guard.Run(ctx, j, func(ctx context.Context) error {
		j.ran, j.began = true, time.Now()
		j.lease, _ = locker.FromContext(ctx)
		prepare(ctx)
		j.failed = j.next.ProcessTask(ctx, j.task)
		return j.failed
	})
}

// concluded says how a task ended whose handler has run.
func (j *job) concluded(ctx context.Context) error {
	err := j.lease.Release(ctx) // it has been released: this says how that went
	if !errors.Is(err, locker.ErrLost) && !errors.Is(err, locker.ErrExpired) {
		// If the work succeeded, and with Once nobody knows yet whether that will be remembered, to repeat the work would be the
		// larger mistake. The release is in the trace.
		return j.failed
	}
	p := lost.problem(j, err)
	if j.failed == nil {
		return p
	}
	return errors.Join(j.failed, p)
}
