package asynqlock

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

const (
	// lineKept is the shortest time for which a line is kept after the last task was put into it.
	lineKept = 10 * time.Minute
	// calledWait is how long a called task waits for its key in the worker, because a watcher may
	// hold the key for a moment.
	calledWait = 200 * time.Millisecond
	// backInLine is the pause of a task that is put off behind other tasks of its line. Usually the
	// task is called before this pause is over, because each task that finishes calls the next
	// task.
	backInLine = 30 * time.Second
)

// mustQueue reports whether the task must queue behind the tasks of its key that were put off. A
// task does not queue if it stays in its worker, or if it is dropped or archived when the key is
// busy.
func (j *job) mustQueue() bool {
	return j.guard.waker != nil && j.delivered && !j.staying && !j.discards()
}

// isItsTurn reports whether the task may try to take its key now. The result is true if no task is
// before this task in the line, or if asynq's Redis does not answer.
func (j *job) isItsTurn(ctx context.Context) bool {
	if !j.mustQueue() || j.calledEarlier {
		return true
	}
	ls := &j.guard.waker.lines
	if !ls.lookups.exists(ctx, ls.redis, ls.keys(j.lock.Key)[0]) {
		return true
	}
	p, err := j.joinLine(ctx)
	if err != nil {
		return true
	}
	if p.tasksAhead == 0 {
		j.waitForKey(ctx)
	}
	return p.mayTry()
}

// isCalled reports whether the task has been at the front of the line since an earlier delivery.
// Then the task may try to take its key even if a later delivery of this process wants the key too.
func (j *job) isCalled(ctx context.Context) bool {
	p, err := j.joinLine(ctx)
	j.calledEarlier = err == nil && p.tasksAhead == 0 && p.wasInLine
	if j.calledEarlier {
		j.waitForKey(ctx)
	}
	return j.calledEarlier
}

// joinLine puts the task into the line of its key, or finds the place that the task has in it.
func (j *job) joinLine(ctx context.Context) (place, error) {
	p, err := j.guard.waker.lines.join(ctx, j.lock.Key, j.entry(), j.arrived, j.rule.lineTTL(), false)
	if err == nil {
		j.inLine, j.othersInLine, j.tasksAhead, j.front = true, true, p.tasksAhead, p.front
	}
	return p, err
}

// waitForKey makes a task at the front of the line wait for its key for a moment.
func (j *job) waitForKey(ctx context.Context) {
	if j.lock.Wait == locker.NoWait {
		j.lock.Wait = shortenWait(ctx, calledWait)
	}
}

// queuedError returns the error of a task that has other tasks of its key before it.
func (j *job) queuedError() error {
	return &locker.Error{Op: locker.OpAcquire, Key: j.lock.Key, Err: fmt.Errorf("%w, or earlier tasks wait for the lock", locker.ErrBusy)}
}

// entry returns the name of this delivery's task in a line.
func (j *job) entry() string { return entry(j.queue, j.taskID) }

// leaveLine gives up the task's place, because the task runs or no longer wants the key.
func (j *job) leaveLine(ctx context.Context) {
	if !j.inLine {
		return
	}
	rest, err := j.guard.waker.lines.leave(context.WithoutCancel(ctx), j.lock.Key, j.entry())
	j.inLine, j.leftLine, j.othersInLine = false, true, err != nil || rest > 0
	if j.ran && j.othersInLine && admitsSeveral(j.lock) {
		j.guard.waker.call(j.lock.Key) // with Shared or a Limit, the next task may run at the same time
	}
}

// admitsSeveral reports whether several tasks may hold the key of lock at once.
func admitsSeveral(lock locker.Rule) bool { return lock.Mode == locker.Shared || lock.Limit > 1 }

// enterLine gives the task that is put off a place in the line of its key. enterLine returns how
// many tasks are before this place.
func (j *job) enterLine(ctx context.Context) int {
	w := j.guard.waker
	w.start()
	// The line is recorded first, so that another process takes it over if this one dies at any
	// later step.
	_, _, _ = w.lines.watch(ctx, watchedFor, 0, indexEntry(j.lock)) // after an error, only this process watches the line
	if j.inLine && j.tasksAhead > 0 {                               // the task is in the line already, and was not called
		j.inLine = false
		w.recordPutOff(j.lock)
		return j.tasksAhead
	}
	p, err := w.lines.join(ctx, j.lock.Key, j.entry(), j.arrived, j.rule.lineTTL(), true)
	if err != nil {
		return 0 // without a place, the task comes back after its pause
	}
	j.inLine, j.front = false, p.front // the next delivery of the task takes over the place
	w.recordPutOff(j.lock)
	return p.tasksAhead
}

// lineTTL is how long a line is kept after a task of the rule was put into it.
func (r *rule) lineTTL() time.Duration { return max(lineKept, 2*r.snooze) }
