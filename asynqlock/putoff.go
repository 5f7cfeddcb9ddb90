package asynqlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// The headers that this package adds to tasks.
const (
	headerID     = "latchkit-id"     // in a clone: the ID of the original task
	headerClones = "latchkit-clones" // in a clone: its number
	headerBefore = "latchkit-before" // in a clone: the task has run before
	headerUnique = "latchkit-unique" // in a clone: it may hold the uniqueness lock of asynq.Unique
	headerFences = "latchkit-fences" // the leases under which a Client enqueued the task
)

// putOff puts the task off if this uses no retry of the task, and if the pause ends before the
// task's deadline. It reports whether it has put the task off.
func (j *job) putOff(ctx context.Context, p *Problem) bool {
	longest, ok := j.longestPause(ctx, p.RetryAfter)
	if !ok {
		return false
	}
	p.RetryAfter = min(p.RetryAfter, longest)
	clone := ""
	if !j.mayPutOff(ctx) {
		if clone, ok = j.replaceByClone(ctx, p); !ok {
			return false
		}
	}
	if j.guard.waker == nil || !j.delivered || !j.inLine && !p.waitsForKey() {
		return true
	}
	if !p.waitsForKey() {
		j.leaveLine(ctx)
		return true
	}
	if ahead := j.enterLine(ctx, clone); ahead > 0 && clone == "" && j.rule.snooze == 0 {
		if longest, ok := j.longestPause(ctx, backInLine); ok {
			p.RetryAfter = min(backInLine, longest) + rand.N(time.Second)
		}
	}
	return true
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

// longestPause returns pause, or half of the time until the task's deadline if this half is less.
// So time is left for the work. It returns false if the result is too short for asynq, because
// asynq counts in whole seconds and looks for tasks every Config.DelayedTaskCheckInterval.
func (j *job) longestPause(ctx context.Context, pause time.Duration) (time.Duration, bool) {
	const least = time.Second
	look, configured := ctx.Value(configuredKey{j.guard}).(time.Duration)
	if !configured {
		look = defaultDelayedTaskCheckInterval
	}
	longest := func(deadline time.Time) time.Duration { return (time.Until(deadline) - look - time.Second) / 2 }
	deadline, bounded := ctx.Deadline()
	// A deadline of ctx in whole seconds comes from the task's Deadline. Any other deadline comes
	// from the Timeout, which begins again with the next delivery, so it does not limit the pause.
	if !j.delivered || !bounded || deadline.Nanosecond() != 0 || longest(deadline) >= pause {
		return pause, true
	}
	if i := j.guard.inspector; i != nil {
		info, err := i.GetTaskInfo(j.queue, j.taskID)
		if err == nil && info.Deadline.IsZero() {
			return pause, true
		}
		if err == nil {
			deadline = info.Deadline
		}
	}
	most := longest(deadline)
	return min(most, pause), most >= least
}

// canBeCloned reports whether the task may continue under another ID. An ID that the program chose
// may be needed: to make the task unique, or to find its result.
func (j *job) canBeCloned() bool {
	g := j.guard
	return g.clones || g.waker != nil && madeByAsynq(j.id) && !j.rule.unique
}

// madeByAsynq reports whether id is a UUID. asynq gives UUIDs to tasks without an ID.
func madeByAsynq(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i, c := range []byte(id) {
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash && c != '-' || !dash && !hex {
			return false
		}
	}
	return true
}

// replaceByClone replaces the task by a clone if this is possible, and returns the clone's ID. If
// the process crashes before the clone is enqueued, asynq delivers the task again. If the process
// crashes after that, both tasks exist, and the original is delivered again. Then the original
// finds the clone's ID taken, or runs as a further task of its key.
func (j *job) replaceByClone(ctx context.Context, p *Problem) (id string, ok bool) {
	g := j.guard
	if !j.canBeCloned() {
		return "", false
	}
	info, err := g.inspector.GetTaskInfo(j.queue, j.taskID)
	if err != nil {
		p.note = fmt.Sprintf("; no clone can be made: %v", err)
		return "", false
	}
	n, _ := strconv.Atoi(j.task.Headers()[headerClones])
	id = j.id + "~" + strconv.Itoa(n+1)
	opts := []asynq.Option{
		asynq.TaskID(id), asynq.Queue(j.queue), asynq.ProcessIn(p.RetryAfter),
		asynq.MaxRetry(j.maxRetry - j.retried), asynq.Timeout(info.Timeout), asynq.Deadline(info.Deadline), asynq.Retention(info.Retention),
	}
	clone := asynq.NewTaskWithHeaders(j.task.Type(), j.task.Payload(), j.cloneHeaders(n+1))
	_, err = g.client.EnqueueContext(ctx, clone, opts...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		err = j.isClone(id)
	}
	if err == nil {
		err = j.moveUnique(ctx, id)
	}
	if err != nil {
		p.note = fmt.Sprintf("; no clone can be made: %v", err)
		return "", false
	}
	p.asynq = asynq.RevokeTask // the clone replaces the task
	return id, true
}

// cloneHeaders returns the headers of the task's clone with this number.
func (j *job) cloneHeaders(number int) map[string]string {
	headers := maps.Clone(j.task.Headers())
	if headers == nil {
		headers = make(map[string]string)
	}
	headers[headerID], headers[headerClones] = j.id, strconv.Itoa(number)
	if j.ranBefore {
		headers[headerBefore] = "yes"
	}
	if j.guard.redis != nil {
		headers[headerUnique] = "yes"
	}
	return headers
}

// isClone returns an error unless the task with this ID is a clone of this task. An earlier
// delivery may have enqueued such a clone and ended before it revoked the task.
func (j *job) isClone(id string) error {
	other, err := j.guard.inspector.GetTaskInfo(j.queue, id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound): // the clone has run already
		return nil
	case err == nil && (other.Headers[headerID] != j.id || !bytes.Equal(other.Payload, j.task.Payload())):
		return fmt.Errorf("another task has its ID, %s", id)
	default:
		return err
	}
}

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
	left := shortenWait(ctx, 0)
	if _, bounded := ctx.Deadline(); bounded && left < tooLittle || ctx.Err() != nil || j.wait == 0 && p.Code == CodeBusy {
		return false
	}
	j.wait = 0
	if p.Code == CodeBusy || p.Code == CodeRunning {
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
func (j *job) giveUpProblem(ctx context.Context, p *Problem) *Problem {
	if ctx.Err() != nil {
		return p
	}
	p.Verdict, p.RetryAfter = Failed, 0
	if j.retried >= j.maxRetry {
		p.Verdict = Archived
	}
	p.note += "; it could not be put off without using a retry, and its time is nearly over"
	return p
}
