package asynqlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/sleep"
	"github.com/latchkit/latchkit/locker"
)

const (
	// abandonedAfter is the longest time that a called task may need to reach a worker. After that
	// time, the task loses its place, because its queue is paused or has no server, or because the
	// worker of the task has died.
	abandonedAfter = 10 * time.Second
	// watchFor is the longest time of one wait of a watcher. The watcher waits again while the line
	// has tasks.
	watchFor = time.Minute
	// watchTTL is the TTL of a watcher's lease. If a process dies just after its watcher got the
	// key, the key stays busy for this time.
	watchTTL = 5 * time.Second
	// mostWatchers is the largest number of watchers of a Guard. Tasks of keys without a watcher
	// come back only after their pause.
	mostWatchers = 1000
)

// A waker calls the task at the front of a key's line when the key becomes free: it makes asynq
// deliver this task at once. Each Guard has one waker, for the keys whose tasks this process has
// put off:
//
//   - If a delivery of this process has or wants the key, this delivery calls the front task when
//     it ends.
//   - Otherwise a watcher waits for the key in the Locker's queue. When the watcher has the key, it
//     calls the front task.
//
// Each process does this for all tasks that it puts off, and not only for the task at the front. So
// a free key is always noticed, whether its holder was another process, a program without workers,
// or a process that died, and a front task that is gone is found by the process of any task behind
// it. If the process of a waker crashes, its tasks come back after their pauses.
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

// interest records what this process does for a key.
type interest struct {
	deliveries int  // the number of deliveries that have or want the key
	parked     bool // a task was put off, and the last delivery must call the front task
	watched    bool // a watcher waits for the key
	calling    bool // a goroutine calls the front task
	checkAgain bool // the calling goroutine must check the line once more
	expecting  bool // a timer checks later whether the called task has reached a worker
}

// enter counts a delivery that wants the key, and returns true. But if onlyIfAlone is true and
// another delivery is counted, enter counts nothing and returns false.
func (w *waker) enter(key string, onlyIfAlone bool) bool {
	return w.change(key, func(in *interest) bool {
		if onlyIfAlone && in.deliveries > 0 {
			return false
		}
		in.deliveries++
		return true
	})
}

// exit reverses enter when a delivery ends. hadTurn is true if the delivery had the key, or gave up
// its place in the line. othersInLine is true if the delivery saw other tasks in the line.
func (w *waker) exit(lock locker.Rule, hadTurn, othersInLine bool) {
	var parked bool
	last := w.change(lock.Key, func(in *interest) bool {
		in.deliveries--
		parked = in.parked
		in.parked = parked && in.deliveries > 0
		return in.deliveries == 0
	})
	switch {
	case hadTurn && (othersInLine || parked):
		w.call(lock.Key)
	case last && parked:
		w.watch(lock)
	}
}

// recordPutOff records that a delivery of this process put its task off. If the waker counts a
// delivery for the key, perhaps this one, the last of them starts the watcher.
func (w *waker) recordPutOff(lock locker.Rule) {
	if !w.change(lock.Key, func(in *interest) bool {
		in.parked = in.parked || in.deliveries > 0
		return in.deliveries > 0
	}) {
		w.watch(lock)
	}
}

// change lets its second parameter, a function, change the interest in key, and returns the result
// of that function. It forgets the interest if nothing is left to do for the key.
func (w *waker) change(key string, change func(in *interest) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.keys[key]
	if in == nil {
		in = &interest{}
		w.keys[key] = in
	}
	changed := change(in)
	if *in == (interest{}) {
		delete(w.keys, key)
	}
	return changed
}

// watch starts a watcher that waits for the key, unless the key has a watcher already.
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

// awaitFree waits for the key, releases it, and calls the front task. It returns true if the key
// stayed busy and tasks still wait for it.
//
// Before the watcher checks the line, it no longer counts as a watcher. So a task that is put off
// later gets a new watcher. A task that was put off earlier is in the line when this watcher checks
// the line.
func (w *waker) awaitFree(lock locker.Rule) bool {
	lease, err := w.locker.Acquire(w.ctx, locker.Rule{Key: lock.Key, Name: "asynq-wake", Mode: lock.Mode, Limit: lock.Limit, Weight: lock.Weight, TTL: watchTTL, Wait: watchFor})
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
		_ = lease.Release(w.ctx) // the error is ignored, because the Locker repeats a release without an answer in the background
		w.call(lock.Key)
	case w.ctx.Err() != nil: // this Guard stops, so another process gets the task and starts a watcher
		w.callFront(context.WithoutCancel(w.ctx), lock.Key)
	}
	return false
}

// call starts a goroutine that calls the task at the front of the line. Each key has at most one
// such goroutine. After Guard.Stop, call itself makes the call: the process ends when its last
// delivery has ended, and waits for no other goroutine.
func (w *waker) call(key string) {
	if w.ctx.Err() != nil {
		w.callFront(context.WithoutCancel(w.ctx), key)
		return
	}
	if !w.change(key, func(in *interest) bool {
		if in.calling || w.ctx.Err() != nil {
			in.checkAgain = in.calling
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
				in.calling, in.checkAgain = in.checkAgain, false
				return !in.calling
			}) {
				return
			}
		}
	}()
}

// callFront calls the task at the front of the line. The state of the task decides what happens:
//
//	retry, scheduled            the task is put off, and is run now
//	pending                     the task is on its way to a worker
//	active                      the task is about to be put off, or about to take the key
//	gone, archived, completed   the task does not want the key any more
//
// callFront checks an active task again after a moment. A called task that does not come in time
// loses its place.
func (w *waker) callFront(ctx context.Context, key string) {
	pause := 2 * time.Millisecond
	for {
		front, since, err := w.lines.front(ctx, key, time.Hour)
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
			} // RunTask has failed, because the state of the task has changed meanwhile
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
		if w.ctx.Err() != nil || !sleep.For(ctx, pause) {
			return
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// state returns the state of a task, or 0 if the task is gone.
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

// expect starts a timer that checks after the duration wait whether the called task has come. A
// task that has not come loses its place. Each key has at most one such timer.
func (w *waker) expect(key string, wait time.Duration) {
	if !w.change(key, func(in *interest) bool {
		armed := in.expecting
		in.expecting = true
		return !armed
	}) {
		return
	}
	time.AfterFunc(max(wait, 0), func() {
		w.change(key, func(in *interest) bool { in.expecting = false; return true })
		if w.ctx.Err() != nil {
			return
		}
		switch front, since, err := w.lines.front(w.ctx, key, 0); {
		case err != nil || front == "" || since < 0:
		case since >= abandonedAfter:
			w.call(key)
		default:
			w.expect(key, abandonedAfter-since)
		}
	})
}

// awaitEnd waits until the goroutines have ended. w.ctx has ended before, so no goroutines start.
func (w *waker) awaitEnd() {
	w.mu.Lock()   // after this, every goroutine that was started is counted in w.routines
	w.mu.Unlock() //nolint:staticcheck // the section is empty on purpose
	w.routines.Wait()
}
