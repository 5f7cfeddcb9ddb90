package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// A waker makes asynq deliver the first task of a key's line when a task of this process has
// released the key. docs/adr/0065-a-released-key-calls-the-next-task.md has the states.
type waker struct {
	lines
	inspector *asynq.Inspector

	mu      sync.Mutex
	stopped bool           // calls are made by the goroutine of the task itself
	calls   sync.WaitGroup // the goroutines that call tasks
}

// stop waits until all goroutines that call tasks have ended. Later calls start no goroutine: the
// process ends when its last task has ended, and waits for nothing else.
func (w *waker) stop() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.calls.Wait()
}

// callNext calls the first task that waits for key. found is what the caller has found in the line
// before it released the key; if it is empty, callNext looks whether a task waits. callNext does
// not occupy a worker, because a task that is on its way needs one.
func (w *waker) callNext(ctx context.Context, key string, found front) {
	ctx = context.WithoutCancel(ctx)
	call := func() {
		if found.task != "" || w.exist(ctx, key) {
			w.callFirst(ctx, key, found)
		}
	}
	w.mu.Lock()
	stopped := w.stopped
	if !stopped {
		w.calls.Go(call)
	}
	w.mu.Unlock()
	if stopped {
		call()
	}
}

// callFirst calls the first task of the line of key. The task's state in asynq decides:
//
//	retry, due within a pause      it was put off: asynq runs it now
//	pending, called just now       it is on its way to a worker
//	pending, called a while ago    nobody serves its queue, or there is a backlog: it loses its
//	                               place, and so do the tasks of this queue that follow it
//	active                         it is about to be put off or to take the key: callFirst looks
//	                               again, for a second; then it loses its place
//	anything else                  it does not wait for this key any more, and loses its place
//
// asynq must not run a task in another state: it may have been archived, or it is another task with
// the same ID that has to wait for its time.
func (w *waker) callFirst(ctx context.Context, key string, f front) {
	unserved := make(map[string]bool)
	pause, end := 2*time.Millisecond, time.Now().Add(comesWithin)
	for {
		if f.task == "" {
			var err error
			if f, err = w.call(ctx, key); err != nil || f.task == "" {
				return
			}
		}
		queue, id, _ := parseEntry(f.task)
		switch state, err := w.state(queue, id); {
		case err != nil:
			return
		case state == asynq.TaskStateRetry && w.inspector.RunTask(queue, id) == nil:
			if !unserved[queue] {
				return
			}
		case state == asynq.TaskStatePending && f.called < comesWithin && !unserved[queue]:
			return
		case state == asynq.TaskStatePending:
			unserved[queue] = true
		case (state == asynq.TaskStateActive || state == asynq.TaskStateRetry) && time.Now().Before(end):
			<-time.After(pause)
			pause, f = min(2*pause, 64*time.Millisecond), front{}
			continue
		}
		if _, err := w.leave(ctx, key, f.task); err != nil {
			return
		}
		f, end = front{}, time.Now().Add(comesWithin)
	}
}

// state returns the state of a task, or 0 if asynq does not have it, or if it is a retry that is
// due later than a pause from now: then it is a task that has failed.
func (w *waker) state(queue, id string) (asynq.TaskState, error) {
	info, err := w.inspector.GetTaskInfo(queue, id)
	switch {
	case queue == "", errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case info.State == asynq.TaskStateRetry && time.Until(info.NextProcessAt) > longestPause+longestPause/4+time.Second:
		return 0, nil
	}
	return info.State, nil
}

const (
	// longestPause is the longest Snooze with WithWaking.
	longestPause = 30 * time.Second
	// pauseInLine is the pause of a task that is put off behind others. Usually the task is called
	// before this pause is over.
	pauseInLine = 10 * time.Second
)

// mustQueue reports whether the task must queue behind the tasks of its key that were put off. A
// task does not queue if it stays in its worker, or if it is dropped or archived when the key is
// busy.
func (j *job) mustQueue() bool {
	return j.guard.waker != nil && j.delivered && !j.staying && !j.discards()
}

// isItsTurn reports whether the task may try to take its key now. The result is true if no task
// waits before it, or if asynq's Redis does not answer.
func (j *job) isItsTurn(ctx context.Context) bool {
	if !j.mustQueue() {
		return true
	}
	if !j.inLine && j.guard.waker.exist(ctx, j.lock.Key) {
		j.enterLine(ctx)
	}
	return !j.inLine || j.front.mayTry(j.entry())
}

// mustLookAgain puts a task that finds its key busy into the line. It returns true if the task is
// at the front now, because then its holder may have released the key before the task was in line.
func (j *job) mustLookAgain(ctx context.Context, p *Problem) bool {
	switch {
	case !j.mustQueue() || j.inLine || !p.waitsForKey():
		return false
	case !j.enterLine(ctx) || !j.front.mayTry(j.entry()):
		return false
	}
	j.lock.Wait = locker.NoWait
	return true
}

// mustGiveBack reports whether the task has got the key out of its turn. A task that tries its key
// although others wait before it looks again when it has the key: if the holder has called the
// first of them before the release, the key is for that one. With KeepFor it keeps the key, which
// nobody could have for that time.
func (j *job) mustGiveBack(ctx context.Context) bool {
	j.gaveBack = j.lock.KeepFor == 0 && j.inLine && j.front.task != j.entry() && j.enterLine(ctx) && !j.front.mayTry(j.entry())
	return j.gaveBack
}

// enterLine gives the task a place in the line of its key, and reports whether it has seen the line.
// Without a place, the task comes back after its pause.
func (j *job) enterLine(ctx context.Context) bool {
	f, err := j.guard.waker.enter(ctx, j.lock.Key, j.entry(), j.arrived)
	if err == nil {
		j.inLine, j.front = true, f
	}
	return err == nil
}

// leaveLine gives up the task's place, because the task runs or no longer wants the key.
func (j *job) leaveLine(ctx context.Context) {
	if !j.inLine {
		return
	}
	others, err := j.guard.waker.leave(ctx, j.lock.Key, j.entry())
	j.inLine, j.leftLine, j.followed = false, true, others || err != nil
	if j.ran && j.followed && (j.lock.Mode == locker.Shared || j.lock.Limit > 1) {
		j.guard.waker.callNext(ctx, j.lock.Key, front{}) // the next task may run beside this one
	}
}

// beforeRelease marks the first task of the line as called, so that no task overtakes it between
// the release and the call. Only a task that comes back from a pause could do so. So if nobody was
// in the line when this run began, there is such a task only after the shortest pause.
func (j *job) beforeRelease(ctx context.Context, began time.Time) {
	if w := j.guard.waker; w != nil && j.delivered && (j.followed || time.Since(began) > leastPause) {
		j.found, _ = w.call(ctx, j.lock.Key)
	}
}

// callNext calls the next task, if this task has had the key or has given up its place. The next
// task may have come while this one had the key that it gave back, so it is called once more.
func (j *job) callNext(ctx context.Context) {
	if w := j.guard.waker; w != nil && j.delivered && (j.ran || j.leftLine || j.gaveBack) {
		w.callNext(ctx, j.lock.Key, j.found)
	}
}

// queuedError returns the error of a task that has other tasks of its key before it.
func (j *job) queuedError() error {
	return &locker.Error{Op: locker.OpAcquire, Key: j.lock.Key, Err: fmt.Errorf("%w, or earlier tasks wait for the lock", locker.ErrBusy)}
}

// entry returns the name of this delivery's task in a line.
func (j *job) entry() string { return entry(j.queue, j.taskID) }
