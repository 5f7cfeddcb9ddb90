package asynqlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// The headers that this package adds to tasks.
const (
	headerID     = "latchkit-id"     // of a clone: the ID of the task that it is a clone of, at first
	headerClones = "latchkit-clones" // of a clone: the how manyth it is
	headerBefore = "latchkit-before" // of a clone: the task has run before
	headerFences = "latchkit-fences" // the leases under which a Client enqueued the task
)

// moved puts the task off by a clone, if it can. What a crash leaves:
//
//	before the clone is enqueued     the task, which asynq delivers again
//	after it, before asynq's answer  both; the task is archived, or delivered again, and finds the clone's ID taken or is one more
//	                                 of a key's tasks
func (j *job) moved(ctx context.Context, p *Problem) bool {
	g := j.guard
	if !g.clones || p.Verdict != Snoozed {
		return false
	}
	id, _ := asynq.GetTaskID(ctx)
	info, err := g.inspector.GetTaskInfo(j.queue, id)
	if err != nil {
		p.note = fmt.Sprintf("; no clone can be made: %v", err)
		return false
	}
	n, _ := strconv.Atoi(j.task.Headers()[headerClones])
	headers := maps.Clone(j.task.Headers())
	if headers == nil {
		headers = make(map[string]string)
	}
	headers[headerID], headers[headerClones] = j.id, strconv.Itoa(n+1)
	if j.before {
		headers[headerBefore] = "yes"
	}
	name := j.id + "~" + strconv.Itoa(n+1)
	opts := []asynq.Option{
		asynq.TaskID(name), asynq.Queue(j.queue), asynq.ProcessIn(p.RetryAfter),
		asynq.MaxRetry(j.most - j.retried), asynq.Timeout(info.Timeout), asynq.Deadline(info.Deadline), asynq.Retention(info.Retention),
	}
	clone := asynq.NewTaskWithHeaders(j.task.Type(), j.task.Payload(), headers)
	_, err = g.client.EnqueueContext(ctx, clone, opts...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		err = j.isClone(name)
	}
	if err != nil {
		p.note = fmt.Sprintf("; no clone can be made: %v", err)
		return false
	}
	p.asynq = asynq.RevokeTask // the clone takes its place
	return true
}

// isClone returns an error if the task called name is not a clone of this one, enqueued by a delivery that ended before it could say so.
func (j *job) isClone(name string) error {
	other, err := j.guard.inspector.GetTaskInfo(j.queue, name)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound): // it has run meanwhile
		return nil
	case err == nil && (other.Headers[headerID] != j.id || !bytes.Equal(other.Payload, j.task.Payload())):
		return fmt.Errorf("another task has its ID, %s", name)
	default:
		return err
	}
}

// stay keeps the task in its worker and lets it try again: in the key's queue if it is busy, after a pause if the Locker cannot
// say. It is false when the task's time is nearly over, as it is after a wait in the queue.
func (j *job) stay(ctx context.Context, p *Problem) bool {
	const tooLittle = 50 * time.Millisecond
	left := patience(ctx, 0)
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
		return true
	case <-ctx.Done():
		return false
	}
}

// givenUp says what becomes of a task that could not be put off: what becomes of any that fails. If its ctx has ended, that was decided by
// asynq, which has put it back into its queue or counted a failure.
func (j *job) givenUp(ctx context.Context, p *Problem) *Problem {
	if ctx.Err() != nil {
		return p
	}
	p.Verdict, p.RetryAfter = Failed, 0
	if j.retried >= j.most {
		p.Verdict = Archived
	}
	p.note += "; it could not be put off without using a retry, and its time is nearly over"
	return p
}
