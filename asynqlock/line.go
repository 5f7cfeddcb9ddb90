package asynqlock

import (
	"context"
	_ "embed" // for the script
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/line.lua
var lineText string

var lineScript = redis.NewScript(lineText)

const (
	// comesWithin is how long a called task may let a free key pass. Then other tasks stop waiting
	// for it: it is gone, nobody serves its queue, or its queue has a backlog.
	comesWithin = time.Second
	// callKept is how long it is recorded that a task was called.
	callKept = time.Minute
	// lineKept is how long a line is kept after a task has entered it or asked for its place. That
	// is longer than a pause and a backlog of the task's queue usually last together.
	lineKept = 10 * time.Minute
	// lineBound is the time-out of each call about a line.
	lineBound = 5 * time.Second
)

// lines has one line for each locked key: the tasks that were put off, in the order of their
// arrival. The lines are in asynq's Redis. A line is only an index. asynq stores the tasks, and
// each task comes back after its pause. So if a line is lost, no task is lost.
type lines struct {
	redis  redis.UniversalClient
	prefix string
}

// front is what a task or a caller finds in a line.
type front struct {
	task   string        // the entry of the first task, "" if no task waits
	called time.Duration // how long ago the first task was called, negative if it was not
	isNew  bool          // the task that asks has entered the line just now
	second string        // the entry of the second task
}

// mayTry reports whether the task with this entry may take its key if the key is free. It may if no
// task waits before it, or if the first task was called and does not come. If the first task was
// not called while another task's pause passed, then either the key is still busy, or its holder
// ended without a call.
func (f front) mayTry(entry string) bool {
	if f.task == "" || f.task == entry {
		return true
	}
	if f.called < 0 {
		return !f.isNew
	}
	return f.called > comesWithin
}

// enter puts the task into the line of key, at the place that follows from its arrival. A task that
// is in the line already keeps its place.
func (ls *lines) enter(ctx context.Context, key, task string, arrived time.Time) (front, error) {
	return ls.run(ctx, key, task, arrived.UnixMicro())
}

// call records that the first task of the line is called. It returns when that task was called
// before: the caller decides whether the task still counts as called.
func (ls *lines) call(ctx context.Context, key string) (front, error) { return ls.run(ctx, key, "", 0) }

func (ls *lines) run(ctx context.Context, key, task string, arrived int64) (front, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lineBound)
	defer cancel()
	answer, err := lineScript.Run(ctx, ls.redis, ls.keys(key),
		task, arrived, lineKept.Milliseconds(), callKept.Milliseconds(), comesWithin.Milliseconds()).Slice()
	if err != nil {
		return front{}, err
	}
	first, _ := answer[0].(string)
	since, _ := answer[1].(int64)
	second, _ := answer[3].(string)
	return front{first, time.Duration(since) * time.Millisecond, answer[2] == int64(1), second}, nil
}

// leave removes the task from the line of key, and reports whether others wait there.
func (ls *lines) leave(ctx context.Context, key, task string) (others bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lineBound)
	defer cancel()
	var left *redis.IntCmd
	_, err = ls.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZRem(ctx, ls.keys(key)[0], task)
		left = p.Exists(ctx, ls.keys(key)[0])
		return nil
	})
	return left.Val() > 0, err
}

// keys returns two Redis keys for the lock called key: its line, and the task that was called last.
// Both are in the same slot of a Redis Cluster.
func (ls *lines) keys(key string) []string {
	tag := "{" + braces.Replace(key) + "}"
	return []string{ls.prefix + "line:" + tag, ls.prefix + "called:" + tag}
}

// braces encodes the characters that would end a hash tag early.
var braces = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// exist reports whether tasks wait in the line of key. Without an answer in time, the result is
// false: then tasks may run in another order, or wait until a pause is over.
func (ls *lines) exist(ctx context.Context, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	return ls.redis.Exists(ctx, ls.keys(key)[0]).Val() > 0 // 0 after an error
}

// entry returns the name of a task in a line.
func entry(queue, id string) string { return strconv.Itoa(len(queue)) + ":" + queue + ":" + id }

// parseEntry returns the queue and the ID of the task that text names. It reverses entry.
func parseEntry(text string) (queue, id string, ok bool) {
	length, rest, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || len(rest) <= n || rest[n] != ':' {
		return "", "", false
	}
	return rest[:n], rest[n+1:], true
}
