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
	// watchFor is the longest time of one wait of a watcher. The watcher waits again while the line
	// has tasks.
	watchFor = time.Minute
	// watchTTL is the TTL of a watcher's lease. If a process dies just after its watcher got the
	// key, the key stays busy for this time.
	watchTTL = 5 * time.Second
	// mostWatchers is the largest number of watchers of a Guard. Further lines wait until another
	// process, or a watcher that has ended, takes them over.
	mostWatchers = 1000
	// longestLook is how long a look waits for a front task that is about to be put off, or to take
	// the key.
	longestLook = 64 * time.Millisecond
)

// A waker calls the task at the front of a key's line when the key becomes free: it makes asynq
// deliver this task at once. Each Guard has one waker:
//
//   - If a delivery of this process has or wants the key, this delivery calls the front task when
//     it ends.
//   - Otherwise a watcher waits for the key in the Locker's queue. When the watcher has the key, it
//     releases the key and calls the front task. A front task that lets the free key pass loses its
//     place at the next look, whatever the reason.
//
// Each process watches the keys whose tasks it puts off. So a free key is always noticed, whether
// its holder was another process, a program without workers, or a process that died. If no process
// watches a line any more, any process takes the line over: see keepEvery.
type waker struct {
	lines     lines
	inspector *asynq.Inspector
	locker    locker.Locker
	ctx       context.Context // ends with Guard.Stop
	routines  sync.WaitGroup

	mu         sync.Mutex
	keys       map[string]*interest
	watchers   int
	keeping    bool      // the goroutine that keeps the watches runs
	unfitUntil time.Time // until then, this process takes over no lines
}

// interest records what this process does for a key.
type interest struct {
	deliveries int    // the number of deliveries that have or want the key
	parked     bool   // a task was put off, and the last delivery must call the front task
	watched    string // the line's entry in the index while a watcher waits for the key, otherwise ""
	calling    bool   // a goroutine calls the front task
	checkAgain bool   // the calling goroutine must check the line once more
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
		w.watch(lock, "")
	}
}

// recordPutOff records that a delivery of this process put its task off. If the waker counts a
// delivery for the key, perhaps this one, the last of them starts the watcher.
func (w *waker) recordPutOff(lock locker.Rule) {
	if !w.change(lock.Key, func(in *interest) bool {
		in.parked = in.parked || in.deliveries > 0
		return in.deliveries > 0
	}) {
		w.watch(lock, "")
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

// watch starts a watcher that waits for the key, unless the key has a watcher already. If the line
// was taken over, till is the time of lines.watch, otherwise "".
func (w *waker) watch(lock locker.Rule, till string) {
	if w.change(lock.Key, func(in *interest) bool {
		if in.watched != "" || w.watchers == mostWatchers || w.ctx.Err() != nil {
			return false
		}
		in.watched = indexEntry(lock)
		w.watchers++
		w.routines.Add(1)
		return true
	}) {
		go func() {
			defer w.routines.Done()
			if till != "" && w.lines.forgetIfEmpty(w.ctx, lock, till) {
				w.unwatch(lock)
				return
			}
			for w.awaitFree(lock) {
			}
		}()
	}
}

// unwatch records that the watcher of the key ends.
func (w *waker) unwatch(lock locker.Rule) {
	w.change(lock.Key, func(in *interest) bool {
		in.watched = ""
		w.watchers--
		return true
	})
}

// wakeName is the name and the metadata of the waits of watchers.
const wakeName = "asynq-wake"

// awaitFree waits for the key, releases it, and calls the front task. It returns true if the key
// stayed busy and tasks still wait for it.
//
// Before the watcher checks the line, it no longer counts as a watcher. So a task that is put off
// later gets a new watcher. A task that was put off earlier is in the line when this watcher checks
// the line.
func (w *waker) awaitFree(lock locker.Rule) bool {
	lease, err := w.locker.Acquire(w.ctx, locker.Rule{
		Key: lock.Key, Name: wakeName, Metadata: wakeName, Mode: lock.Mode, Limit: lock.Limit, Weight: lock.Weight, TTL: watchTTL, Wait: watchFor,
	})
	if errors.Is(err, locker.ErrBusy) && w.ctx.Err() == nil && w.lines.lookups.exists(w.ctx, w.lines.redis, w.lines.keys(lock.Key)[0]) {
		return true
	}
	if err == nil {
		w.rest(lock)
		_ = lease.Release(w.ctx) // the error is ignored, because the Locker repeats a release without an answer in the background
	}
	w.unwatch(lock)
	switch {
	case w.ctx.Err() != nil: // this Guard stops, so another process gets the task
		w.callFront(context.WithoutCancel(w.ctx), lock.Key)
	case err == nil:
		w.call(lock.Key)
	case errors.Is(err, locker.ErrInvalidRule), errors.Is(err, locker.ErrUnsupported):
		w.rest(lock) // a process with another Locker has recorded this line
	case errors.Is(err, locker.ErrBusy): // the Locker works, and no task waits for the key any more
	case errors.Is(err, locker.ErrTooManyWaiters): // the Locker works, and any process soon takes this line over
	default:
		w.unfit()
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
//	called a while ago          the task has let the free key pass, and loses its place
//	gone, archived, completed   the task does not want the key any more, and loses its place
//	scheduled                   it is a later task with the same ID, and the place is not its own
//	retry                       the task is put off, and is run now
//	pending                     the task is on its way to a worker
//	active                      the task is about to be put off, or about to take the key
//
// callFront checks an active task again after a moment. Whether a called task has come, the next
// look finds out. A task that loses its place although it exists is run too, so that it comes as
// soon as its queue is served.
func (w *waker) callFront(ctx context.Context, key string) {
	unserved := stuck{w.inspector, nil}
	for pause := 2 * time.Millisecond; ; pause *= 2 {
		front, since, err := w.lines.call(ctx, key)
		if err != nil || front == "" {
			return
		}
		queue, id, ok := parseEntry(front)
		state := asynq.TaskState(0)
		if ok {
			if state, err = w.state(queue, id); err != nil {
				return
			}
		}
		sleeping := state == asynq.TaskStateRetry // asynq keeps no task that was put off as scheduled
		ran := sleeping && w.inspector.RunTask(queue, id) == nil
		lives := sleeping || state == asynq.TaskStateActive || state == asynq.TaskStatePending
		switch {
		case !lives || since >= lateAfter || (ran || state == asynq.TaskStatePending) && unserved.has(queue):
			if lives && state != asynq.TaskStateActive {
				unserved.add(queue)
			}
			if _, err := w.lines.leave(ctx, key, front); err != nil {
				return
			}
			pause = time.Millisecond
			continue
		case ran, state == asynq.TaskStatePending:
			return
		}
		if pause > longestLook || w.ctx.Err() != nil || !pauseFor(ctx, pause) {
			return
		}
	}
}

// pauseFor waits for the time pause. It returns false when ctx ends.
func pauseFor(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// stuck knows the queues whose tasks do not come to a worker. It asks asynq only after a first task
// has not come.
type stuck struct {
	inspector *asynq.Inspector
	queues    map[string]bool
}

// add records that a called task of the queue has not come.
func (s *stuck) add(queue string) {
	if s.queues == nil {
		s.queues = make(map[string]bool)
	}
	s.queues[queue] = true
}

// has reports whether a task of the queue has not come, or if another one has not, whether the
// queue is paused.
func (s *stuck) has(queue string) bool {
	if s.queues == nil {
		return false
	}
	known, ok := s.queues[queue]
	if !ok {
		info, err := s.inspector.GetQueueInfo(queue)
		known = err == nil && info.Paused
		s.queues[queue] = known
	}
	return known
}

// state returns the state of a task, or 0 if the task is gone.
func (w *waker) state(queue, id string) (asynq.TaskState, error) {
	info, err := w.inspector.GetTaskInfo(queue, id)
	switch {
	case isGone(err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return info.State, nil
}

// isGone reports whether err, an error of the Inspector, says that the task does not exist.
func isGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// awaitEnd waits until the goroutines have ended. w.ctx has ended before, so no goroutines start.
func (w *waker) awaitEnd() {
	w.mu.Lock()   // after this, every goroutine that was started is counted in w.routines
	w.mu.Unlock() //nolint:staticcheck // the section is empty on purpose
	w.routines.Wait()
}
