package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }

// hot is a worker in a process of its own, for the queues q and q-low. Each task writes a note to
// Redis when it begins and when it ends. A task of a process that was stopped waits for the end of
// its context.
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
		note := func(what string) {
			fatal(c.RPush(context.WithoutCancel(ctx), queue+":notes", fmt.Sprintln(what, string(t.Payload()), os.Getpid(), time.Now().UnixMilli())).Err())
		}
		began := time.Now()
		note("begin")
		time.Sleep(work)
		if time.Since(began) > work+time.Second {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
		if errors.Is(context.Cause(ctx), locker.ErrLost) {
			note("lost")
			return nil
		}
		note("end")
		return nil
	})
	server := asynq.NewServerFromRedisClient(c, g.Configure(asynq.Config{
		Concurrency: 4, Queues: map[string]int{queue: 1, queue + "-low": 1}, Logger: silent{},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}))
	fatal(server.Start(mux))
	fmt.Println("ready")
	select {}
})

const hotAccount = 42

// enqueueReport enqueues task n of an account, in one of the two queues.
func enqueueReport(t *testing.T, c *redis.Client, queue string, account, n int) *asynq.TaskInfo {
	t.Helper()
	if n%2 == 1 {
		queue += "-low"
	}
	info, err := asynq.NewClientFromRedisClient(c).EnqueueContext(t.Context(),
		asynq.NewTask("report", fmt.Appendf(nil, `{"account":%d,"n":%d}`, account, n)), asynq.Queue(queue))
	must(t, err)
	return info
}

// A note is what a task has written.
type note struct {
	what             string // "begin", "end", or "lost" if the task had lost its lock at its end
	account, n       int
	process, written int64 // the process, and when it wrote the note, in ms
}

// awaitNotes waits until the tasks of the queue have written n notes. It returns them in order.
func awaitNotes(t *testing.T, c *redis.Client, queue string, n int) (notes []note) {
	t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); c.LLen(t.Context(), queue+":notes").Val() < int64(n); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the tasks have not written %d notes", n)
		}
	}
	for _, line := range c.LRange(t.Context(), queue+":notes", 0, -1).Val() {
		var n note
		_, err := fmt.Sscanf(line, `%s {"account":%d,"n":%d} %d %d`, &n.what, &n.account, &n.n, &n.process, &n.written)
		must(t, err)
		notes = append(notes, n)
	}
	return notes
}

// Three processes receive tasks of one key from two queues. The tasks run one at a time, in the
// order in which they arrived.
func TestTasksOfAHotKeyKeepTheirOrderOverProcesses(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	inspector := asynq.NewInspectorFromRedisClient(c)
	queue := fmt.Sprint("hot", runs.Add(1))
	for range 3 {
		hot.Start(t, redistest.Shared(t).Addr(), queue, "300ms").Expect(t, "ready")
	}
	const all = 20
	for n := range all {
		info := enqueueReport(t, c, queue, hotAccount, n)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			now, err := inspector.GetTaskInfo(info.Queue, info.ID)
			if err != nil || now.State == asynq.TaskStateRetry || n == 0 && c.LLen(t.Context(), queue+":notes").Val() > 0 {
				break // it has ended, or is put off, or has begun
			}
			if time.Now().After(deadline) {
				t.Fatalf("task %d is %v", n, now.State)
			}
		}
	}
	processes := make(map[int64]bool)
	for i, note := range awaitNotes(t, c, queue, 2*all) {
		processes[note.process] = true
		if want := []string{"begin", "end"}[i%2]; note.what != want || note.n != i/2 {
			t.Fatalf("note %d is %v, want the %s of task %d", i, note, want, i/2)
		}
	}
	if len(processes) < 2 {
		t.Errorf("%d processes had tasks", len(processes))
	}
}

// 400 tasks of one key lie among 1 000 tasks of other keys, in two queues that two servers work
// off. The tasks of the one key run one at a time, and the others do not wait for them.
func TestABacklogOfAHotKeyHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	queue := fmt.Sprint("backlog", runs.Add(1))
	const hotTasks, others = 400, 1000
	for n := range hotTasks + others {
		account := hotAccount
		if n%7 >= 2 { // five of seven
			account = 1000 + n
		}
		enqueueReport(t, c, queue, account, n)
	}
	for range 2 {
		hot.Start(t, redistest.Shared(t).Addr(), queue, "5ms").Expect(t, "ready")
	}
	notes := awaitNotes(t, c, queue, 2*(hotTasks+others))
	isHot := func(n note) bool { return n.account == hotAccount }
	took := func(of []note) time.Duration {
		return time.Duration(of[len(of)-1].written-notes[0].written) * time.Millisecond
	}
	other, hot := slices.DeleteFunc(slices.Clone(notes), isHot), slices.DeleteFunc(slices.Clone(notes), func(n note) bool { return !isHot(n) })
	t.Logf("%d tasks of other keys took %v, %d tasks of 5 ms with one key took %v", len(other)/2, took(other), len(hot)/2, took(hot))
	if took(other) > took(hot)/2 {
		t.Error("the other keys have waited for the hot key")
	}
	for i := 0; i < len(hot); i += 2 {
		if hot[i].what != "begin" || hot[i+1].what != "end" || hot[i].n != hot[i+1].n {
			t.Fatalf("%v and %v ran at the same time", hot[i], hot[i+1])
		}
	}
}

// While a worker is stopped, asynq delivers its task to another worker. Then the first one learns
// that its lock is lost.
func TestAStoppedWorkerIsOvertakenAndLearnsIt(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	queue := fmt.Sprint("stopped", runs.Add(1))
	first := hot.Start(t, redistest.Shared(t).Addr(), queue, "1s")
	id := enqueueReport(t, c, queue, hotAccount, 0).ID
	awaitNotes(t, c, queue, 1)
	first.Pause()
	// asynq believes that its own lease of the task ended a minute ago. A server takes such tasks when
	// it starts.
	lease := redis.ZAddArgs{XX: true, Ch: true, Members: []redis.Z{{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id}}}
	if n, err := c.ZAddArgs(t.Context(), "asynq:{"+queue+"}:lease", lease).Result(); n != 1 {
		t.Fatalf("asynq keeps no lease of the task (%v)", err)
	}
	hot.Start(t, redistest.Shared(t).Addr(), queue, "1s")
	awaitNotes(t, c, queue, 3)
	first.Resume()
	all := awaitNotes(t, c, queue, 4)
	if last := all[3]; all[2].what != "end" || all[2].process == int64(first.Pid()) || last.what != "lost" || last.process != int64(first.Pid()) {
		t.Errorf("the notes are %v, want that the second worker ends, and then the first, without its lock", all)
	}
}
