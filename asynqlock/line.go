package asynqlock

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/line_join.lua
	joinText string
	//go:embed lua/line_call.lua
	callText string
	//go:embed lua/line_leave.lua
	leaveText string

	joinScript  = redis.NewScript(joinText)
	callScript  = redis.NewScript(callText)
	leaveScript = redis.NewScript(leaveText)
)

const (
	// lateAfter is how long a called task may need to reach a worker. Then other tasks need not
	// wait for it any longer: its queue has a backlog, and an idle key would be the larger evil.
	lateAfter = 5 * time.Second
	// lateFor is how long tasks of a key do not wait for those before them after one of them was
	// late.
	lateFor = time.Minute
	// lineBound bounds one step on a line. asynq's Redis delivered the task a moment ago, so it is
	// there in general.
	lineBound = 5 * time.Second
)

// lines are the tasks that are put off, in order of arrival, one line for each key of a lock. They
// are kept in asynq's Redis. A line is an index only: asynq has the tasks, and each comes back by
// itself after a while. So a line that is lost costs time and order, and no task.
type lines struct {
	redis   redis.UniversalClient
	prefix  string
	lookups lookups
	clock   serverClock
}

// keys are those of the line of key, and of the call in it. They share a cluster slot.
func (ls *lines) keys(key string) []string {
	tag := "{" + braces.Replace(key) + "}"
	return []string{ls.prefix + "line:" + tag, ls.prefix + "call:" + tag}
}

// braces encodes what would end a hash tag before its time.
var braces = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// place is where a task stands in its line.
type place struct {
	ahead  int           // how many tasks are before it
	had    bool          // it had its place before
	called time.Duration // since when the task at the front is on its way to a worker; negative when it is not
	late   bool          // tasks of this line need not wait for those before them
}

// mayTry says whether the task may take the lock if it is free.
func (p place) mayTry() bool { return p.ahead == 0 || p.late || p.called > lateAfter }

// join gives task its place by the arrival of its delivery, or shows the place that it has. former
// is the task whose place it takes, or "". putOff says that it will not take the lock now.
func (ls *lines) join(ctx context.Context, key, task, former string, arrived time.Time, ttl time.Duration, putOff bool) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	if sent := time.Now(); ls.clock.needed(sent) {
		now, err := ls.redis.Time(ctx).Result()
		if err != nil {
			return place{}, err
		}
		ls.clock.observe(now.UnixMicro(), sent, time.Now())
	}
	answer, err := joinScript.Run(ctx, ls.redis, ls.keys(key), task, former, ls.clock.at(arrived), ttl.Milliseconds(), putOff).Int64Slice()
	if err != nil {
		return place{}, err
	}
	if len(answer) != 4 {
		return place{}, fmt.Errorf("asynqlock: unexpected answer %v of a line", answer)
	}
	return place{int(answer[0]), answer[1] == 1, time.Duration(answer[2]) * time.Microsecond, answer[3] > 0}, nil
}

// call returns the task at the front, and since when it is called. It is "" when the line is empty.
func (ls *lines) call(ctx context.Context, key string) (task string, since time.Duration, err error) {
	return ls.front(ctx, key, time.Hour)
}

// called returns since when the task at the front is called; negative when it is not, or the line
// is empty.
func (ls *lines) called(ctx context.Context, key string) (since time.Duration, err error) {
	task, since, err := ls.front(ctx, key, 0)
	if task == "" {
		since = -1
	}
	return since, err
}

func (ls *lines) front(ctx context.Context, key string, ttl time.Duration) (task string, since time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	answer, err := callScript.Run(ctx, ls.redis, ls.keys(key), ttl.Milliseconds()).Slice()
	if errors.Is(err, redis.Nil) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	if len(answer) == 2 {
		task, text := answer[0].(string)
		micros, number := answer[1].(int64)
		if text && number {
			return task, time.Duration(micros) * time.Microsecond, nil
		}
	}
	return "", 0, fmt.Errorf("asynqlock: unexpected answer %v of a line", answer)
}

// leave takes task out of its line, and returns how many are left.
func (ls *lines) leave(ctx context.Context, key, task string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	return leaveScript.Run(ctx, ls.redis, ls.keys(key), task, lateAfter.Microseconds(), lateFor.Microseconds()).Int()
}

// entry is how a task is named in a line.
func entry(queue, id string) string { return strconv.Itoa(len(queue)) + ":" + queue + ":" + id }

// parseEntry is the reverse of entry.
func parseEntry(text string) (queue, id string, ok bool) {
	length, rest, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || len(rest) <= n || rest[n] != ':' {
		return "", "", false
	}
	return rest[:n], rest[n+1:], true
}
