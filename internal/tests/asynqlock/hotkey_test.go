package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// hot is a worker in a process of its own. All its tasks have one key. Each task writes to Redis
// when it begins and when it ends.
var hot = proc.Register("asynq worker with a hot key", func(args []string) {
	addr, queue, each := args[0], args[1], args[2]
	work, err := time.ParseDuration(each)
	fatal(err)
	c := redis.NewClient(&redis.Options{Addr: addr})
	l, err := locker.New(c, locker.WithTTL(2*time.Second), locker.WithPrefix(queue+":"))
	fatal(err)
	g, err := asynqlock.New(l, asynqlock.WithWaking(c), asynqlock.WithPrefix(queue+":"),
		asynqlock.On("report", asynqlock.Template("account:{payload.account}")))
	fatal(err)
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc("report", func(ctx context.Context, t *asynq.Task) error {
		note := func(what string) error {
			return c.RPush(ctx, queue+":notes", what+" "+string(t.Payload())+" "+strconv.Itoa(os.Getpid())).Err()
		}
		if err := note("begin"); err != nil {
			return err
		}
		time.Sleep(work) // the work of the task
		return note("end")
	})
	server := asynq.NewServerFromRedisClient(c, g.Configure(asynq.Config{
		Concurrency: 4, Queues: map[string]int{queue: 1, queue + "-low": 1}, Logger: silent{},
	}))
	fatal(server.Start(mux))
	fmt.Println("ready", os.Getpid())
	select {}
})

// A note is what a task has written: "begin" or "end", its account and number, and its process.
type note struct {
	what       string
	account, n int
	process    string
}

// notes returns the notes that the tasks have written, in order.
func notes(t *testing.T, c *redis.Client, queue string) (all []note) {
	t.Helper()
	lines, err := c.LRange(t.Context(), queue+":notes", 0, -1).Result()
	must(t, err)
	for _, line := range lines {
		var n note
		if _, err := fmt.Sscanf(line, `%s {"account":%d,"n":%d} %s`, &n.what, &n.account, &n.n, &n.process); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, n)
	}
	return all
}

// awaitEnds waits until n tasks of the queue have ended, but no longer than limit. It returns the
// notes of all tasks.
func awaitEnds(t *testing.T, c *redis.Client, queue string, n int, limit time.Duration) []note {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		all, ended := notes(t, c, queue), 0
		for _, note := range all {
			if note.what == "end" {
				ended++
			}
		}
		if ended >= n {
			return all
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d tasks have ended within %v", ended, n, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// enqueueHot enqueues a task of the hot key, and waits until the task is put off. The first task,
// number 0, is not put off. For task 0, enqueueHot waits until the task has begun.
func enqueueHot(t *testing.T, c *redis.Client, queue string, n int) {
	t.Helper()
	log := queue
	if n%2 == 1 {
		queue += "-low"
	}
	info, err := asynq.NewClientFromRedisClient(c).EnqueueContext(t.Context(),
		asynq.NewTask("report", fmt.Appendf(nil, `{"account":42,"n":%d}`, n)), asynq.Queue(queue))
	must(t, err)
	i, deadline := asynq.NewInspectorFromRedisClient(c), time.Now().Add(time.Minute)
	for {
		now, err := i.GetTaskInfo(queue, info.ID)
		if errors.Is(err, asynq.ErrTaskNotFound) || err == nil && (now.State == asynq.TaskStateRetry || n == 0 && len(notes(t, c, log)) > 0) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("task %d is not put off: %+v, %v", n, now, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Three processes receive tasks of one key from two queues. The tasks run one at a time, in the
// order in which they were enqueued.
func TestTasksOfAHotKeyKeepTheirOrderOverProcesses(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	queue := fmt.Sprint("hot", runs.Add(1))
	for range 3 {
		hot.Start(t, redistest.Shared(t).Addr(), queue, "300ms").Expect(t, "ready")
	}
	const all = 20
	began := time.Now()
	for n := range all {
		enqueueHot(t, c, queue, n)
	}
	processes := make(map[string]bool)
	for i, note := range awaitEnds(t, c, queue, all, 2*time.Minute) {
		processes[note.process] = true
		if want := []string{"begin", "end"}[i%2]; note.what != want || note.n != i/2 {
			t.Fatalf("note %d is %v, want the %s of task %d", i, note, want, i/2)
		}
	}
	if len(processes) < 2 {
		t.Errorf("%d processes had tasks", len(processes))
	}
	t.Logf("%d tasks of 300 ms in %d processes took %v", all, len(processes), time.Since(began))
}
