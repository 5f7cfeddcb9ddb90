package asynqlock

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

const (
	// lineKept is how long a line lives at least after the last task joined it.
	lineKept = 10 * time.Minute
	// calledWait is how long a called task waits for its key in the worker: a watcher may have the
	// key for a moment.
	calledWait = 200 * time.Millisecond
	// backInLine is when a task comes back by its own time that has others before it. One of them
	// comes sooner, and each of them calls the next one.
	backInLine = 30 * time.Second
)

// queues says whether the task takes its turn behind the tasks of its key that are put off. A task
// that is thrown away if the key is busy does not, and neither does one that stays in its worker.
func (j *job) queues() bool {
	return j.guard.waker != nil && j.known && !j.staying && !j.throwsAway()
}

// isItsTurn says whether the task may try to take its key now: no task is before it in the line.
// Without an answer from asynq's Redis it may.
func (j *job) isItsTurn(ctx context.Context) bool {
	if !j.queues() || j.called {
		return true
	}
	ls := &j.guard.waker.lines
	if !ls.lookups.exists(ctx, ls.redis, ls.keys(j.lock.Key)[0]) {
		return true
	}
	p, err := ls.join(ctx, j.lock.Key, j.entry(), "", j.arrived, j.rule.lineTTL(), false)
	if err != nil {
		return true
	}
	j.inLine, j.line, j.ahead = true, true, p.ahead
	if j.lock.Wait == locker.NoWait && p.ahead == 0 {
		j.lock.Wait = patience(ctx, calledWait)
	}
	return p.mayTry()
}

// isCalled says whether the task is at the front of the line since an earlier delivery. Then it may
// try to take its key beside another delivery of this process, which came later.
func (j *job) isCalled(ctx context.Context) bool {
	p, err := j.guard.waker.lines.join(ctx, j.lock.Key, j.entry(), "", j.arrived, j.rule.lineTTL(), false)
	if err != nil {
		return false
	}
	j.inLine, j.line, j.ahead, j.called = true, true, p.ahead, p.ahead == 0 && p.had
	if j.called && j.lock.Wait == locker.NoWait {
		j.lock.Wait = patience(ctx, calledWait)
	}
	return j.called
}

// behind is the error of a task that has others of its key before it.
func (j *job) behind() error {
	return &locker.Error{Op: locker.OpAcquire, Key: j.lock.Key, Err: fmt.Errorf("%w, or earlier tasks wait for it", locker.ErrBusy)}
}

// entry names this delivery's task in a line. A clone has an entry of its own.
func (j *job) entry() string { return entry(j.queue, j.taskID) }

// leaveLine gives up the task's place, because it runs or does not want the key any more.
func (j *job) leaveLine(ctx context.Context) {
	if !j.inLine {
		return
	}
	rest, err := j.guard.waker.lines.leave(context.WithoutCancel(ctx), j.lock.Key, j.entry())
	j.inLine, j.left, j.line = false, true, err != nil || rest > 0
	if j.ran && j.line && j.lock.Mode == locker.Shared {
		j.guard.waker.call(j.lock.Key) // the next one may be a reader too
	}
}

// enterLine gives the task that is put off, or its clone, a place in the line of its key. It
// returns how many tasks are before it.
func (j *job) enterLine(ctx context.Context, clone string) int {
	w := j.guard.waker
	if j.inLine && j.ahead > 0 && clone == "" { // it has its place, and was not called
		j.inLine = false
		w.parked(j.lock, false, j.counted)
		return j.ahead
	}
	task, former := j.entry(), ""
	if clone != "" {
		task, former = entry(j.queue, clone), task
	}
	p, err := w.lines.join(ctx, j.lock.Key, task, former, j.arrived, j.rule.lineTTL(), true)
	if err != nil {
		return 0 // it comes back by its time
	}
	j.inLine = false // this delivery leaves the place to the next one
	w.parked(j.lock, p.ahead == 0, j.counted)
	return p.ahead
}

// lineTTL is how long a line lives after a task of the rule joined it.
func (r *rule) lineTTL() time.Duration { return max(lineKept, 2*r.snooze) }
