package asynqlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

const (
	// abandonedAfter is how long a called task may stay on its way. Then it loses its place: its
	// queue is paused, nobody serves it, or the worker that had the task died.
	abandonedAfter = 10 * time.Second
	// watchFor bounds one wait of a watcher; it waits again while the line has tasks.
	watchFor = time.Minute
	// watchTTL is how long the key stays busy when a process dies whose watcher just got it.
	watchTTL = 5 * time.Second
	// mostWatchers bounds the watchers of a Guard. Tasks of further keys come back by their time.
	mostWatchers = 1000
)

// A waker runs the task at the front of a key's line when the key becomes free. Each process sees
// to the tasks that it puts off itself:
//
//   - A delivery of this process has, or wants, the key: the end of that delivery calls the front.
//   - Otherwise, the task is at the front: a watcher waits for the key in the Locker's queue, and
//     calls the front when it has the key.
//   - Otherwise the process that put off the task at the front sees to it.
//
// So every free key is noticed, whoever had it: another process, a program that is no worker, or a
// holder that died. If a waker crashes, the task at the front comes back by its own time.
type waker struct {
	lines     lines
	inspector *asynq.Inspector
	locker    locker.Locker
	ctx       context.Context // ends with Guard.Stop
	routines  sync.WaitGroup

	mu       sync.Mutex
	keys     map[string]*interest
	watchers int
}

// interest is what this process has to do with a key.
type interest struct {
	deliveries int  // that have, or want, the key
	parked     bool // a task was put off meanwhile: the end of the last delivery calls
	watched    bool // a watcher waits for the key
	calling    bool // a goroutine calls the front of the line,
	again      bool // and is to look once more
	expecting  bool // a timer looks after a called task
}

// enter counts a delivery that wants the key. It is false, and counts nothing, when the delivery
// would be alone but is not.
func (w *waker) enter(key string, alone bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.keys[key]
	if in == nil {
		in = &interest{}
		w.keys[key] = in
	}
	if alone && in.deliveries > 0 {
		return false
	}
	in.deliveries++
	return true
}

// exit ends what enter began. tried says that the delivery had the key, or gave up its place in the
// line; line says that it saw other tasks in the line.
func (w *waker) exit(lock locker.Rule, tried, line bool) {
	w.mu.Lock()
	in := w.keys[lock.Key]
	in.deliveries--
	parked := in.parked
	if in.deliveries == 0 {
		in.parked = false
	}
	last := in.deliveries == 0
	w.forget(lock.Key)
	w.mu.Unlock()
	switch {
	case tried && (line || parked):
		w.call(lock.Key)
	case last && parked:
		w.watch(lock)
	}
}

// parked notes that a delivery of this process put its task off. front says that the task is the
// first of its line, counted that enter has counted the delivery.
func (w *waker) parked(lock locker.Rule, front, counted bool) {
	w.mu.Lock()
	in := w.keys[lock.Key]
	others := in != nil && in.deliveries > 0
	if counted {
		others = in.deliveries > 1
	}
	if others || front && counted {
		in.parked, front = true, false
	}
	w.mu.Unlock()
	if front {
		w.watch(lock)
	}
}

// forget drops an interest that is none any more; the mutex is held.
func (w *waker) forget(key string) {
	if in := w.keys[key]; in != nil && *in == (interest{}) {
		delete(w.keys, key)
	}
}

// change changes what this process has to do with key.
func (w *waker) change(key string, change func(in *interest) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.keys[key]
	if in == nil {
		in = &interest{}
		w.keys[key] = in
	}
	changed := change(in)
	w.forget(key)
	return changed
}

// watch lets a watcher wait for the key, unless one does.
func (w *waker) watch(lock locker.Rule) {
	if w.change(lock.Key, func(in *interest) bool {
		if in.watched || w.watchers == mostWatchers || w.ctx.Err() != nil {
			return false
		}
		in.watched = true
		w.watchers++
		w.routines.Add(1)
		return true
	}) {
		go func() {
			defer w.routines.Done()
			for w.awaitFree(lock) {
			}
		}()
	}
}

// awaitFree waits for the key, gives it up again, and calls the front of the line. It is true when
// the key was busy all the time, and tasks still wait for it.
//
// The watcher counts as gone before it looks at the line. So a task that is put off later has a
// watcher of its own, and one that was put off earlier is seen.
func (w *waker) awaitFree(lock locker.Rule) bool {
	lease, err := w.locker.Acquire(w.ctx, locker.Rule{Key: lock.Key, Name: "asynq-wake", Mode: lock.Mode, TTL: watchTTL, Wait: watchFor})
	if errors.Is(err, locker.ErrBusy) && w.ctx.Err() == nil && w.lines.lookups.exists(w.ctx, w.lines.redis, w.lines.keys(lock.Key)[0]) {
		return true
	}
	w.change(lock.Key, func(in *interest) bool {
		in.watched = false
		w.watchers--
		return true
	})
	switch {
	case err == nil:
		_ = lease.Release(w.ctx) // without an answer it goes on in the background
		w.call(lock.Key)
	case w.ctx.Err() != nil: // another process gets the task, and watches
		w.callFront(context.WithoutCancel(w.ctx), lock.Key)
	}
	return false
}

// call runs the task at the front of the line. One goroutine does so for each key.
func (w *waker) call(key string) {
	if !w.change(key, func(in *interest) bool {
		if in.calling || w.ctx.Err() != nil {
			in.again = in.calling
			return false
		}
		in.calling = true
		w.routines.Add(1)
		return true
	}) {
		return
	}
	go func() {
		defer w.routines.Done()
		for {
			w.callFront(w.ctx, key)
			if w.change(key, func(in *interest) bool {
				in.calling, in.again = in.again, false
				return !in.calling
			}) {
				return
			}
		}
	}()
}

// callFront runs the task at the front of the line. By the state in which asynq has the task:
//
//	retry, scheduled            it is put off, and is run now
//	pending                     it is on its way to a worker
//	active                      it is about to be put off, or about to take the key
//	gone, archived, completed   it does not want the key any more
//
// Which of the two an active task does is seen after a moment. A task that is on its way for too
// long loses its place.
func (w *waker) callFront(ctx context.Context, key string) {
	pause := 2 * time.Millisecond
	for {
		front, since, err := w.lines.call(ctx, key)
		if err != nil || front == "" {
			return
		}
		queue, id, ok := parseEntry(front)
		state := asynq.TaskState(0)
		if ok {
			state, err = w.state(queue, id)
		}
		switch {
		case err != nil:
			return
		case state == asynq.TaskStateRetry, state == asynq.TaskStateScheduled:
			if w.inspector.RunTask(queue, id) == nil {
				w.expect(key, abandonedAfter-since)
				return
			} // its state is another now
		case (state == asynq.TaskStateActive || state == asynq.TaskStatePending) && since >= abandonedAfter,
			state != asynq.TaskStateActive && state != asynq.TaskStatePending:
			if _, err := w.lines.leave(ctx, key, front); err != nil {
				return
			}
			continue
		case state == asynq.TaskStatePending:
			w.expect(key, abandonedAfter-since)
			return
		}
		if w.ctx.Err() != nil || !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// state is that of a task, 0 when it is gone.
func (w *waker) state(queue, id string) (asynq.TaskState, error) {
	info, err := w.inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return info.State, nil
}

// expect looks after left whether the called task has come, and lets it lose its place if it has
// not. One timer does so for each key.
func (w *waker) expect(key string, left time.Duration) {
	if !w.change(key, func(in *interest) bool {
		armed := in.expecting
		in.expecting = true
		return !armed
	}) {
		return
	}
	time.AfterFunc(max(left, 0), func() {
		w.change(key, func(in *interest) bool { in.expecting = false; return true })
		if w.ctx.Err() != nil {
			return
		}
		switch since, err := w.lines.called(w.ctx, key); {
		case err != nil || since < 0:
		case since >= abandonedAfter:
			w.call(key)
		default:
			w.expect(key, abandonedAfter-since)
		}
	})
}

// end waits until the goroutines have ended. ctx has ended before, so no others begin.
func (w *waker) end() {
	w.mu.Lock()   // whoever began one before has counted it
	w.mu.Unlock() //nolint:staticcheck // an empty section is what is wanted
	w.routines.Wait()
}

// sleep returns whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
