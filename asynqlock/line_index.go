package asynqlock

import (
	"context"
	_ "embed" // for the scripts
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

var (
	//go:embed lua/lines_watch.lua
	watchText string
	//go:embed lua/lines_forget.lua
	forgetText string

	watchScript  = redis.NewScript(watchText)
	forgetScript = redis.NewScript(forgetText)
)

// The index of lines is a sorted set in asynq's Redis. It has each line with the time until which a
// process watches it. So a line is watched as long as any process lives:
//
//	a process puts a task off           it records the line before the task enters the line
//	a process watches a line            it prolongs the time every keepEvery
//	a watcher has called the front      it sets the time to lookEvery from now
//	the time is over                    the next process that looks takes the line over; it watches
//	                                    the line, or removes a line that is empty
//	a process is stopped or dies        its lines are taken over after watchedFor at the latest
//	a process is paused, and continues  two processes watch the line, which costs one more look
//	Redis loses the index               the processes that live record their lines again; tasks of
//	                                    other lines come back when their pauses are over
const (
	// keepEvery is how often a process prolongs its watches and takes lines over.
	keepEvery = 150 * time.Millisecond
	// watchedFor is how long a line counts as watched after its process has said so.
	watchedFor = 500 * time.Millisecond
	// lookEvery is how long a line is left alone after its front task was called, unless a task is
	// put off meanwhile.
	lookEvery = time.Second
)

// indexEntry returns the line's entry in the index. A watcher of another process needs the fields
// of the Rule that say how the key is locked.
func indexEntry(lock locker.Rule) string {
	return fmt.Sprintf("%d.%d.%d.%s", lock.Mode, lock.Limit, lock.Weight, lock.Key)
}

// parseIndexEntry reverses indexEntry.
func parseIndexEntry(text string) (lock locker.Rule, ok bool) {
	n, err := fmt.Sscanf(text, "%d.%d.%d.", &lock.Mode, &lock.Limit, &lock.Weight)
	if err != nil || n != 3 {
		return lock, false
	}
	lock.Key = text[len(indexEntry(lock)):]
	return lock, lock.Key != ""
}

// index returns the Redis key of the index.
func (ls *lines) index() []string { return []string{ls.prefix + "lines"} }

// watch records that this process watches lines for the given time. It returns at most most lines
// that no process watches, and the time until which they count as watched now.
func (ls *lines) watch(ctx context.Context, d time.Duration, most int, entries ...string) (given []string, till string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	if len(entries) == 0 {
		entries = []string{""}
	}
	args := make([]any, 0, len(entries)+3)
	for _, e := range entries {
		args = append(args, e)
	}
	args = append(args, d.Microseconds(), lineKept.Milliseconds(), most)
	answer, err := watchScript.Run(ctx, ls.redis, ls.index(), args...).StringSlice()
	if err != nil {
		return nil, "", err
	}
	if len(answer) == 0 {
		return nil, "", errUnexpected(answer)
	}
	return answer[1:], answer[0], nil
}

// makeDue makes the next process that asks take the line of key over. Its entry in the index stays
// as it is, because a watcher that waits in another Mode, or with another Limit, keeps tasks out.
func (ls *lines) makeDue(ctx context.Context, key string) error {
	bounded, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	entries, err := ls.redis.ZRange(bounded, ls.index()[0], 0, -1).Result()
	if err != nil {
		return err
	}
	var due []redis.Z
	for _, entry := range entries {
		if lock, ok := parseIndexEntry(entry); ok && lock.Key == key {
			due = append(due, redis.Z{Member: entry})
		}
	}
	if due == nil { // Redis has lost the index, so nobody knows how the key is locked
		_, _, err := ls.watch(ctx, 0, 0, indexEntry(locker.Rule{Key: key}))
		return err
	}
	return ls.redis.ZAdd(bounded, ls.index()[0], due...).Err()
}

// forgetIfEmpty removes from the index the line that this process has taken over, if the line is
// empty, and reports whether it is empty. till is the time that watch has returned: if a task was
// put off since then, the time is another one, and the line stays in the index.
func (ls *lines) forgetIfEmpty(ctx context.Context, lock locker.Rule, till string) bool {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	n, err := ls.redis.Exists(ctx, ls.keys(lock.Key)[0]).Result()
	if err != nil || n > 0 {
		return false
	}
	_ = forgetScript.Run(ctx, ls.redis, ls.index(), indexEntry(lock), till).Err() // after an error, the next process that takes the line over forgets it
	return true
}

// start starts the goroutine that keeps the watches of this process.
func (w *waker) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keeping || w.ctx.Err() != nil {
		return
	}
	w.keeping = true
	w.routines.Go(func() {
		for w.ctx.Err() == nil {
			w.keep()
			pauseFor(w.ctx, keepEvery)
		}
	})
}

// keep prolongs the watches of this process, and takes over lines that no process watches.
func (w *waker) keep() {
	w.mu.Lock()
	entries := make([]string, 0, len(w.keys))
	for _, in := range w.keys {
		if in.watched != "" {
			entries = append(entries, in.watched)
		}
	}
	room := mostWatchers - w.watchers
	if time.Now().Before(w.unfitUntil) {
		room = 0
	}
	w.mu.Unlock()
	given, till, err := w.lines.watch(w.ctx, watchedFor, room, entries...)
	if err != nil {
		return
	}
	for _, entry := range given {
		if lock, ok := parseIndexEntry(entry); ok {
			w.watch(lock, till)
		}
	}
}

// rest leaves a line alone for lookEvery.
func (w *waker) rest(lock locker.Rule) {
	_, _, _ = w.lines.watch(w.ctx, lookEvery, 0, indexEntry(lock)) // after an error, the line is looked at sooner
}

// unfit makes this process take over no lines for a while, because its Locker cannot watch them.
// Meanwhile other processes do.
func (w *waker) unfit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unfitUntil = time.Now().Add(2 * lookEvery)
}
