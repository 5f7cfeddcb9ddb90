package asynqlock

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// A LineTask is a task that waits in the line of a key.
type LineTask struct {
	Queue string
	ID    string
	// Type is the task's type, or "" if asynq does not have the task any more.
	Type string
	// State is the state of the task in asynq, or 0 if asynq does not have the task any more.
	State asynq.TaskState
	// Arrived is when the task first reached a worker, by the clock of asynq's Redis.
	Arrived time.Time
}

// waits reports whether the task still waits for the key. A scheduled task has not come to a worker
// yet: it is a later task with the same ID.
func (t LineTask) waits() bool {
	switch t.State {
	case asynq.TaskStateRetry, asynq.TaskStatePending, asynq.TaskStateActive:
		return true
	default:
		return false
	}
}

// Line returns the tasks that wait for key, the next one first. It is for operators and tests: the
// line may have changed when Line returns. An error is one of asynq's Redis, or
// locker.ErrUnsupported if the Guard has no [WithWaking]. ctx bounds the first call to Redis; the
// calls of asynq's Inspector, one for each task, take no context.
func (g *Guard) Line(ctx context.Context, key string) ([]LineTask, error) {
	if g.waker == nil {
		return nil, errNoLines(key)
	}
	members, err := g.waker.lines.all(ctx, key)
	if err != nil {
		return nil, err
	}
	tasks := make([]LineTask, len(members))
	for i, m := range members {
		text, _ := m.Member.(string)
		t := LineTask{Arrived: time.UnixMicro(int64(m.Score))}
		if queue, id, ok := parseEntry(text); ok {
			t.Queue, t.ID = queue, id
			info, err := g.inspector.GetTaskInfo(queue, id)
			if err != nil && !isGone(err) {
				return nil, err
			}
			if err == nil {
				t.Type, t.State = info.Type, info.State
			}
		}
		tasks[i] = t
	}
	return tasks, nil
}

// RepairLine removes from the line of key the tasks that asynq does not have any more, or has
// archived, completed or scheduled for later, and makes a running process look at the line at once.
// It returns how many tasks it has removed. A line repairs itself as long as any process of the
// service runs, so RepairLine is for lines that an operator suspects. Errors are those of
// [Guard.Line].
func (g *Guard) RepairLine(ctx context.Context, key string) (removed int, err error) {
	tasks, err := g.Line(ctx, key)
	if err != nil {
		return 0, err
	}
	for _, t := range tasks {
		if t.waits() {
			continue
		}
		if _, err := g.waker.lines.leave(ctx, key, entry(t.Queue, t.ID)); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, g.waker.lines.makeDue(ctx, key)
}

func errNoLines(key string) error {
	return fmt.Errorf("%w: asynqlock: the Guard keeps no line for %q; make it with WithWaking", locker.ErrUnsupported, key)
}

// all returns the entries of the line, each with the time of its arrival in µs.
func (ls *lines) all(ctx context.Context, key string) ([]redis.Z, error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	return ls.redis.ZRangeWithScores(ctx, ls.keys(key)[0], 0, -1).Result()
}
