package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// putOff puts the task off for at most half of the time until its deadline, so that time is left
// for the work. It returns false if this is too short for asynq, which counts in whole seconds and
// looks for tasks every Config.DelayedTaskCheckInterval.
func (j *job) putOff(ctx context.Context, p *Problem) bool {
	if j.inLine && !p.waitsForKey() {
		j.leaveLine(ctx)
	}
	if queue, id, ok := parseEntry(j.front.task); ok && j.inLine && j.front.task != j.entry() {
		p.note += fmt.Sprintf("; tasks of this key come before it, the first is %s in the queue %s", id, queue)
		switch {
		case j.front.second == j.entry() && j.front.called >= 0:
			p.RetryAfter = leastPause // if the called task does not come, this one runs
		case j.rule.snooze == 0:
			p.RetryAfter = pauseInLine + rand.N(pauseInLine/4)
		}
	}
	// A deadline of ctx in whole seconds may be the task's Deadline. Or the task has a Deadline and
	// a Timeout, and asynq has rounded the end of the Timeout down. Any other deadline comes from
	// the Timeout, which begins again with the next delivery, so it does not limit the pause.
	deadline, bounded := ctx.Deadline()
	if !j.delivered || !bounded || deadline.Nanosecond() != 0 {
		return true
	}
	look, _ := ctx.Value(configuredKey{j.guard}).(time.Duration)
	longest := (time.Until(deadline) - look - time.Second) / 2
	p.RetryAfter = min(p.RetryAfter, longest)
	return longest >= leastPause
}

// waitsForKey reports whether the task may run as soon as its key is free.
func (p *Problem) waitsForKey() bool {
	return p.Code == CodeBusy || p.Code == CodeTooManyWaiters || errors.Is(p.err, errStopped)
}

// mayPutOff reports whether asynq can put the task off without counting a retry. asynq checks
// whether retries are left before it calls IsFailure.
func (j *job) mayPutOff(ctx context.Context) bool {
	_, configured := ctx.Value(configuredKey{j.guard}).(time.Duration)
	return !j.delivered || j.retried < j.maxRetry && configured
}

// leastPause is the shortest time for which asynq can put a task off.
const leastPause = time.Second

// stay keeps the task in its worker for another attempt, and returns true when this attempt may
// begin. If the key is busy, the attempt itself waits in the key's queue. After other errors, stay
// waits for a pause. If the task's time is nearly over, for example after a wait in the queue, stay
// returns false.
func (j *job) stay(ctx context.Context, p *Problem) bool {
	const tooLittle = 50 * time.Millisecond
	if j.guard.stopped.Err() != nil { // asynq requeues the task when its ShutdownTimeout is over
		<-ctx.Done()
		return false
	}
	left, busy := shortenWait(ctx, 0), p.Code == CodeBusy || p.Code == CodeRunning
	if _, bounded := ctx.Deadline(); bounded && left < tooLittle || ctx.Err() != nil || j.wait == 0 && busy {
		return false
	}
	j.wait = 0
	if busy {
		return true
	}
	pause := p.RetryAfter
	if left > 0 {
		pause = min(pause, left)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-j.guard.stopped.Done():
	case <-ctx.Done():
		return false
	}
	return true
}

// giveUpProblem returns p, changed for a task that could not be put off. asynq treats the task like
// any failed task. If ctx has ended, asynq has already requeued the task or counted a failure.
//
// The time that is nearly over may be that of a Timeout, which begins again with the next delivery.
// So a task with a retry left is put off now. If the time is that of the Deadline, asynq fails the
// task at the next delivery.
func (j *job) giveUpProblem(ctx context.Context, p *Problem) *Problem {
	switch {
	case ctx.Err() != nil:
		return p
	case j.mayPutOff(ctx):
		p.RetryAfter = min(p.RetryAfter, leastPause)
		return p
	}
	p.Verdict, p.RetryAfter = Failed, 0
	if j.retried >= j.maxRetry {
		p.Verdict = Archived
	}
	p.note += "; it could not be put off without using a retry, and its time is nearly over"
	return p
}
