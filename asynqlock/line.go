package asynqlock

import (
	"context"
	_ "embed" // for the scripts
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
	// lateAfter is how long a called task may let a free key pass. After that time, other tasks
	// stop waiting for the called task, and the called task loses its place: it is gone, nobody
	// serves its queue, or its queue has a backlog. A changed order is better than an idle key.
	// The time is less than lookEvery, so the look that follows a call finds out.
	lateAfter = 900 * time.Millisecond
	// lateFor is how long tasks of a key may run out of order after a called task was late.
	lateFor = 10 * time.Second
	// lineBound is the time-out of each call about a line. asynq's Redis delivered the task a
	// moment ago, so Redis usually answers.
	lineBound = 5 * time.Second
)

// lines has one line for each locked key. A line contains the tasks that were put off, in the order
// of their arrival. The lines are in asynq's Redis. A line is only an index: asynq stores the
// tasks, and each task comes back after its pause. So if a line is lost, tasks come back later and
// in another order, but no task is lost. A further index has the lines themselves: see watches.
type lines struct {
	redis   redis.UniversalClient
	prefix  string
	lookups lookups
	clock   serverClock
}

// keys returns two Redis keys for the lock called key: the key of its line, and the key of the
// line's call. Both Redis keys are in the same cluster slot.
func (ls *lines) keys(key string) []string {
	tag := "{" + braces.Replace(key) + "}"
	return []string{ls.prefix + "line:" + tag, ls.prefix + "call:" + tag}
}

// braces encodes the characters that would end a hash tag early.
var braces = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")

// place is a task's place in its line.
type place struct {
	tasksAhead int           // how many tasks are before this task
	wasInLine  bool          // the task was in the line before
	calledAgo  time.Duration // how long ago the front task was called; negative if it was not called
	anyOrder   bool          // tasks of this line may run out of order
	front      string        // the entry of the task at the front
}

// mayTry reports whether the task may take the lock if the lock is free.
func (p place) mayTry() bool { return p.tasksAhead == 0 || p.anyOrder || p.calledAgo > lateAfter }

// join puts task into the line, at the place that follows from the arrival of its delivery, and
// returns this place. A task that is in the line already keeps its place. putOff is true if the
// task will not take the lock now.
func (ls *lines) join(ctx context.Context, key, task string, arrived time.Time, ttl time.Duration, putOff bool) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	if sent := time.Now(); ls.clock.mustRead(sent) {
		now, err := ls.redis.Time(ctx).Result()
		if err != nil {
			return place{}, err
		}
		ls.clock.observe(now.UnixMicro(), sent, time.Now())
	}
	answer, err := joinScript.Run(ctx, ls.redis, ls.keys(key), task, ls.clock.serverTime(arrived), ttl.Milliseconds(), putOff).Slice()
	if err != nil {
		return place{}, err
	}
	if len(answer) != 5 {
		return place{}, errUnexpected(answer)
	}
	var numbers [4]int64
	for i := range numbers {
		numbers[i], _ = answer[i].(int64)
	}
	front, _ := answer[4].(string)
	return place{int(numbers[0]), numbers[1] == 1, time.Duration(numbers[2]) * time.Microsecond, numbers[3] > 0, front}, nil
}

func errUnexpected(answer any) error {
	return fmt.Errorf("asynqlock: unexpected reply %v from the line of a key", answer)
}

// callKept is how long it is recorded that a task was called.
const callKept = time.Hour

// call records that the task at the front of the line is called, and returns this task and how long
// ago it was called. If the line is empty, task is "".
func (ls *lines) call(ctx context.Context, key string) (task string, since time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	answer, err := callScript.Run(ctx, ls.redis, ls.keys(key), callKept.Milliseconds(), lateAfter.Microseconds()).Slice()
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
	return "", 0, errUnexpected(answer)
}

// leave removes task from its line, and returns how many tasks are left.
func (ls *lines) leave(ctx context.Context, key, task string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, lineBound)
	defer cancel()
	return leaveScript.Run(ctx, ls.redis, ls.keys(key), task, lateAfter.Microseconds(), lateFor.Microseconds()).Int()
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
