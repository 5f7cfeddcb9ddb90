package asynqlock_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
)

// longest is the longest pause that WithWaking allows. A task with this pause that runs within
// promptly was called.
const (
	longest  = 30 * time.Second
	promptly = 15 * time.Second
)

// wakingGuard returns a Guard with WithWaking. It stands for the Guard of one process.
func (q *queue) wakingGuard(policies ...asynqlock.Policy) *asynqlock.Guard {
	q.t.Helper()
	g := guardOf(q.t, q.locker(), asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), policies...))
	q.stop(g)
	return g
}

// stop stops the Guard g when the test ends, before the servers stop.
func (q *queue) stop(g *asynqlock.Guard) {
	q.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Stop(ctx); err != nil {
			q.t.Error(err)
		}
	})
}

// workers runs a server for all these queues, with the settings of Configure.
func (q *queue) workers(g *asynqlock.Guard, concurrency int, handler asynq.Handler, queues ...string) {
	q.t.Helper()
	cfg := asynq.Config{Concurrency: concurrency, Logger: quiet{}, ShutdownTimeout: time.Second, Queues: map[string]int{q.name: 1}}
	for _, name := range queues {
		cfg.Queues[name] = 1
	}
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	q.run(mux, g.Configure(cfg), handler)
}

// record is a handler. It records the order of the tasks by their payloads, and how many ran at
// the same time. The first task ends when gate is closed.
type record struct {
	duration time.Duration
	gate     chan struct{} // nil: the first task is like the others
	then     func()        // what the other tasks do; nil: nothing

	mu    sync.Mutex
	order []string
	now   int
	most  int
}

func (r *record) ProcessTask(_ context.Context, t *asynq.Task) error {
	r.mu.Lock()
	r.order = append(r.order, string(t.Payload()))
	r.now++
	r.most = max(r.most, r.now)
	first := len(r.order) == 1
	r.mu.Unlock()
	switch {
	case first && r.gate != nil:
		<-r.gate
	case r.then != nil:
		r.then()
	}
	time.Sleep(r.duration) //nolint:forbidigo // the work
	r.mu.Lock()
	r.now--
	r.mu.Unlock()
	return nil
}

// payloads returns the payloads of the tasks in the order in which they began.
func (r *record) payloads() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

func numbered(n int) string { return `{"account":"42","n":` + strconv.Itoa(n) + `}` }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// putOff enqueues task n in the queue, and waits until it is put off.
func (q *queue) putOff(n int, queue string, opts ...asynq.Option) (id string) {
	q.t.Helper()
	id = q.enqueue("job", numbered(n), append(opts, asynq.Queue(queue))...).ID
	await(q.t, "it is put off", func() bool {
		info, err := q.inspector.GetTaskInfo(queue, id)
		return err == nil && info.State == asynq.TaskStateRetry
	})
	return id
}

// gated starts workers for the queues, and enqueues task 0, which keeps the key until open is
// called.
func (q *queue) gated(g *asynqlock.Guard, work *record, queues ...string) (open func()) {
	q.t.Helper()
	work.gate = make(chan struct{})
	open = sync.OnceFunc(func() { close(work.gate) })
	q.workers(g, 4, work, queues...)
	q.t.Cleanup(open)
	q.enqueue("job", numbered(0))
	await(q.t, "task 0 runs", func() bool { return len(work.payloads()) == 1 })
	return open
}

// Tasks share a key, and each works for 100 ms. They need little more than that, and run in the order
// of their arrival: over two queues, and also if some come back because their pauses are over.
// Without waking they need a pause each.
func TestTasksOfAHotKeyFollowEachOtherInOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		all    int
		snooze time.Duration
	}{"ten tasks": {10, longest}, "tasks that come back": {40, time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, work := newQueue(t), &record{duration: 100 * time.Millisecond}
			low := q.name + "-low"
			open := q.gated(q.wakingGuard(asynqlock.Snooze(tc.snooze)), work, low)
			arrived := []string{numbered(0)}
			for n := range tc.all - 1 {
				q.putOff(n+1, []string{low, q.name}[n%2])
				arrived = append(arrived, numbered(n+1))
			}
			began := time.Now()
			open()
			awaitFor(t, time.Minute, "all have run", func() bool { return len(work.payloads()) == tc.all })
			took := time.Since(began)
			t.Logf("%d tasks of 100 ms took %v", tc.all, took)
			if took > promptly { // ten tasks take 1 s to 2 s on an idle machine
				t.Errorf("%d tasks of 100 ms took %v", tc.all, took)
			}
			if !slices.Equal(work.payloads(), arrived) {
				t.Errorf("the order of %v is not that of their arrival", work.payloads())
			}
			if work.most != 1 {
				t.Errorf("%d ran at a time", work.most)
			}
		})
	}
}

// The pause of the second task is over just before the key is released. The task looks at the line
// before that, and gets the key. But the holder has called the first task, so the key is for it.
func TestATaskGivesTheKeyBackThatItGotOutOfTurn(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	inner, release := q.locker(), make(chan func(), 1)
	l := lockerFunc(func(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
		select {
		case open := <-release:
			open()
			for q.redis.Exists(ctx, q.name+":"+busyKey).Val() > 0 {
				runtime.Gosched()
			}
		default:
		}
		return inner.Acquire(ctx, r)
	})
	g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Snooze(longest)))
	q.stop(g)
	open := q.gated(g, work)
	q.putOff(1, q.name)
	second := q.putOff(2, q.name)
	<-time.After(time.Second) // a holder looks at the line before its release only after the shortest pause
	release <- open
	must(t, q.inspector.RunTask(q.name, second))
	awaitFor(t, promptly, "all have run", func() bool { return len(work.payloads()) == 3 })
	if got := work.payloads(); got[1] != numbered(1) {
		t.Errorf("%v is not the order of arrival", got)
	}
}

// A task that waited for the key, and gives it back, is put off for the key, and not because of Stop.
func TestATaskGivesTheKeyBackThatItHasWaitedFor(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	held, err := q.locker().Acquire(t.Context(), locker.Rule{Key: "account:42"})
	must(t, err)
	l := q.locker()
	g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Wait(time.Hour), asynqlock.Snooze(longest)))
	q.stop(g)
	const first = "5:other:first"
	line := q.name + ":asynqlock:line:{account:42}"
	must(t, q.redis.ZAdd(t.Context(), line, redis.Z{Score: float64(time.Now().Add(-5 * time.Second).UnixMicro()), Member: first}).Err())
	see := q.serve(g, asynq.Config{}, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	id := q.enqueue("job", `{"account":"42"}`).ID
	await(t, "it is put off behind the first", func() bool { return q.state(id) == "retry after 0 retries" })
	must(t, q.inspector.RunTask(q.name, id))
	await(t, "it waits", func() bool {
		info, err := l.Inspect(t.Context(), "account:42")
		return err == nil && info.Waiters == 1
	})
	must(t, q.redis.Set(t.Context(), q.name+":asynqlock:called:{account:42}", first, time.Minute).Err())
	must(t, held.Release(t.Context()))
	await(t, "it is put off again", func() bool { return len(see.problems()) == 2 })
	if got := see.problems(); got[0] != got[1] {
		t.Errorf("it was put off for %q", got)
	}
}

// lockerFunc is a Locker that only acquires.
type lockerFunc func(context.Context, locker.Rule) (*locker.Lease, error)

func (f lockerFunc) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	return f(ctx, r)
}

// The holder saw no task in line, so it called nobody. The task must look at the key again.
func TestATaskLooksAtTheKeyAgainWhenItIsInLine(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	inner, release := q.locker(), sync.OnceFunc(func() { _ = lease.Release(context.Background()) })
	l := lockerFunc(func(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
		lease, err := inner.Acquire(ctx, r)
		if errors.Is(err, locker.ErrBusy) { // the key is released before the task is in line
			release()
		}
		return lease, err
	})
	g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Snooze(longest)))
	q.stop(g)
	q.workers(g, 1, work)
	q.enqueue("job", numbered(0))
	awaitFor(t, promptly, "it has run", func() bool { return len(work.payloads()) == 1 })
}

// A holder that is no task calls nobody. The pause of the first task decides when the tasks go on.
// They occupy no worker until then.
func TestTasksOutlastAHolderThatCallsNobody(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	q.workers(q.wakingGuard(asynqlock.Snooze(time.Second)), 2, work)
	for n := range 6 {
		q.enqueue("job", numbered(n))
	}
	q.enqueue("job", `{"account":"7"}`)
	await(t, "the task of the other key has run", func() bool { return len(work.payloads()) == 1 })
	must(t, lease.Release(t.Context()))
	await(t, "all have run", func() bool { return len(work.payloads()) == 7 })
}

// A task that arrives while the key is free does not overtake the tasks that wait for it.
func TestANewTaskQueuesBehindTasksThatWait(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	q.workers(q.wakingGuard(asynqlock.Snooze(longest)), 2, work)
	q.putOff(0, q.name)
	must(t, lease.Release(t.Context()))
	q.putOff(1, q.name)
	if got := work.payloads(); len(got) > 0 {
		t.Errorf("%v ran", got)
	}
}

// The first task of the line may have been deleted or archived. The tasks behind it must not wait
// for it.
func TestALineGoesOnWithoutItsFirstTask(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(q *queue, low, id string) error{
		"deleted":  func(q *queue, low, id string) error { return q.inspector.DeleteTask(low, id) },
		"archived": func(q *queue, low, id string) error { return q.inspector.ArchiveTask(low, id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, work := newQueue(t), &record{}
			low := q.name + "-low"
			open := q.gated(q.wakingGuard(asynqlock.Snooze(longest)), work, low)
			first := q.putOff(1, low)
			q.putOff(2, q.name)
			must(t, end(q, low, first))
			open()
			awaitFor(t, promptly, "the task behind it has run", func() bool { return slices.Contains(work.payloads(), numbered(2)) })
			info, err := q.inspector.GetTaskInfo(low, first)
			if name == "archived" && (err != nil || info.State != asynq.TaskStateArchived) {
				t.Errorf("the archived task is %v, %v", info, err)
			}
		})
	}
}

// The tasks of a paused queue lose their places together, when the first of them has been called
// and has not come. They do not cost the others a pause each.
func TestAPausedQueueCostsOnePause(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	low := q.name + "-low"
	open := q.gated(q.wakingGuard(asynqlock.Snooze(2*time.Second)), work, low)
	const paused, live = 25, 20
	for n := range paused {
		q.putOff(n+1, low)
	}
	for n := range live {
		q.putOff(paused+n+1, q.name)
	}
	must(t, q.inspector.PauseQueue(low))
	open()
	awaitFor(t, promptly, "the tasks of the other queue have run", func() bool { return len(work.payloads()) == 1+live })
	must(t, q.inspector.UnpauseQueue(low))
	await(t, "all have run", func() bool { return len(work.payloads()) == 1+paused+live })
}

// A program deletes a task that was put off, and enqueues another one with the same ID. The line
// still has the ID, but the new task has failed, and must not run before its time.
func TestATaskThatHasTheIDOfAnotherOneRunsAtItsTime(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	low := q.name + "-low"
	open := q.gated(q.wakingGuard(asynqlock.Snooze(longest)), work)
	// No server of a Guard has the queue low. So its task enters the line by hand.
	must(t, q.redis.ZAdd(t.Context(), q.line(), redis.Z{Score: 1, Member: strconv.Itoa(len(low)) + ":" + low + ":again"}).Err())
	cfg := promptConfig(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}, low)
	q.run(asynq.NewServeMux(), cfg, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("it fails") }))
	q.enqueue("job", numbered(1), asynq.TaskID("again"), asynq.Queue(low))
	waits := func() bool {
		info, err := q.inspector.GetTaskInfo(low, "again")
		must(t, err)
		return info.State == asynq.TaskStateRetry
	}
	await(t, "it waits for its time", waits)
	q.putOff(2, q.name)
	open()
	awaitFor(t, promptly, "the task behind it has run", func() bool { return slices.Contains(work.payloads(), numbered(2)) })
	if !waits() {
		t.Error("it ran before its time")
	}
}

// line returns the Redis key of the line of busyKey.
func (q *queue) line() string { return q.name + ":asynqlock:line:{" + busyKey + "}" }

// The line is only an index. If the line is lost, its tasks come back after their pauses.
func TestNoTaskIsLostWithItsLine(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	open := q.gated(q.wakingGuard(asynqlock.Snooze(time.Second)), work)
	for n := range 5 {
		q.putOff(n+1, q.name)
	}
	if n := q.redis.Del(t.Context(), q.line()).Val(); n != 1 {
		t.Error("there was no line")
	}
	open()
	await(t, "all have run", func() bool { return len(work.payloads()) == 6 })
}

// A task may succeed, fail or be dropped. However it ends, its end calls the next task.
func TestTheNextTaskIsCalledHoweverTheOneBeforeItEnds(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	var runs atomic.Int32
	gate, work := make(chan struct{}), &record{}
	q.workers(q.wakingGuard(asynqlock.Once(time.Minute), asynqlock.Snooze(longest)), 4, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		if runs.Add(1) == 1 {
			<-gate
			return errors.Join(errors.New("the first run fails for good"), asynq.SkipRetry)
		}
		return work.ProcessTask(ctx, t)
	}))
	q.enqueue("job", numbered(0))
	await(t, "it runs", func() bool { return runs.Load() == 1 })
	for n := range 4 {
		q.putOff(n+1, q.name)
	}
	close(gate)
	awaitFor(t, promptly, "nothing is left but the failed task", func() bool {
		info, err := q.inspector.GetQueueInfo(q.name)
		return err == nil && info.Size == info.Archived && info.Archived == 1
	})
	if got := work.payloads(); len(got) != 1 {
		t.Errorf("%v ran after the first task had failed, want one task: it does the work that Once remembers", got)
	}
}

// asynq shows the text of a task that waits. It names the first task that waits for the same key.
func TestATaskThatWaitsSaysForWhom(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	_ = q.gated(q.wakingGuard(), work)
	first, second := q.putOff(1, q.name), q.putOff(2, q.name)
	info, err := q.inspector.GetTaskInfo(q.name, second)
	must(t, err)
	if !strings.Contains(info.LastErr, "the first is "+first+" in the queue "+q.name) {
		t.Errorf("the text of the second task is %q", info.LastErr)
	}
}
