package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
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
// the same time.
type record struct {
	duration time.Duration

	mu    sync.Mutex
	order []string
	now   map[string]int
	most  int
}

func (r *record) ProcessTask(_ context.Context, t *asynq.Task) error {
	key := t.Type()
	r.mu.Lock()
	if r.now == nil {
		r.now = make(map[string]int)
	}
	r.order = append(r.order, string(t.Payload()))
	r.now[key]++
	r.most = max(r.most, r.now[key])
	r.mu.Unlock()
	time.Sleep(r.duration) //nolint:forbidigo // the work
	r.mu.Lock()
	r.now[key]--
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

// Ten tasks share a key, and each task works for 100 ms. So together they should need little more
// than a second. With the default policy they needed 106 s.
func TestTasksOfAHotKeyFollowEachOther(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	work := &record{duration: 100 * time.Millisecond}
	q.workers(q.wakingGuard(), 10, work)
	began := time.Now()
	for n := range 10 {
		q.enqueue("job", numbered(n))
	}
	await(t, "all have run", func() bool { return len(work.payloads()) == 10 })
	took := time.Since(began)
	t.Logf("10 tasks of 100 ms took %v", took)
	if took > 15*time.Second { // 2 s on an idle machine; a task that is not woken comes after up to 30 s
		t.Errorf("10 tasks of 100 ms took %v", took)
	}
	if work.most != 1 {
		t.Errorf("%d ran at a time", work.most)
	}
}

// Tasks that are put off keep their order, even if many tasks are put off, and even if they are in
// different queues.
func TestTasksOfAHotKeyKeepTheirOrder(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	work := &record{duration: 5 * time.Millisecond}
	low := q.name + "-low"
	inside, gate := make(chan struct{}, 100), make(chan struct{})
	q.workers(q.wakingGuard(), 8, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		inside <- struct{}{}
		<-gate
		return work.ProcessTask(ctx, t)
	}), low)
	const all = 100
	for n := range all {
		var opts []asynq.Option
		if n%2 == 1 {
			opts = append(opts, asynq.Queue(low))
		}
		info := q.enqueueAndWait(numbered(n), opts...)
		if n == 0 {
			<-inside // now the first task has the key
		} else {
			await(t, "it is put off", func() bool {
				now, err := q.inspector.GetTaskInfo(info.Queue, info.ID)
				return err == nil && now.State == asynq.TaskStateRetry
			})
		}
	}
	close(gate)
	awaitFor(t, 2*time.Minute, "all have run", func() bool { return len(work.payloads()) == all })
	for n, payload := range work.payloads() {
		if payload != numbered(n) {
			t.Fatalf("task %d of %v was not the one that came as the %dth", n, work.payloads(), n)
		}
	}
	if work.most != 1 {
		t.Errorf("%d ran at a time", work.most)
	}
}

// enqueueAndWait enqueues a task, and waits until a worker has it.
func (q *queue) enqueueAndWait(payload string, opts ...asynq.Option) *asynq.TaskInfo {
	q.t.Helper()
	info, err := q.client.EnqueueContext(q.t.Context(), asynq.NewTask("job", []byte(payload)), append([]asynq.Option{asynq.Queue(q.name)}, opts...)...)
	if err != nil {
		q.t.Fatal(err)
	}
	await(q.t, "a worker has had the task", func() bool {
		now, err := q.inspector.GetTaskInfo(info.Queue, info.ID)
		return err != nil || now.State == asynq.TaskStateRetry || now.State == asynq.TaskStateActive
	})
	return info
}

// The holder of the key is not a worker, so only a watcher can notice when the key becomes free.
func TestATaskIsWokenWhoeverHadTheKey(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	if err != nil {
		t.Fatal(err)
	}
	work := &record{}
	q.workers(q.wakingGuard(asynqlock.Snooze(time.Hour)), 2, work)
	id := q.enqueue("job", numbered(0)).ID
	await(t, "it is put off", func() bool { return q.state(id) == "retry after 0 retries" })
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "it has run", func() bool { return len(work.payloads()) == 1 })
}

// Workers stay free for tasks of other keys.
func TestTasksOfAHotKeyLeaveTheWorkersFree(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	work := &record{}
	q.workers(q.wakingGuard(asynqlock.Snooze(time.Hour)), 2, work)
	for n := range 6 {
		q.enqueue("job", numbered(n))
	}
	q.enqueue("job", `{"account":"7"}`)
	await(t, "the task of the other key has run", func() bool { return len(work.payloads()) == 1 })
	must(t, lease.Release(t.Context()))
	await(t, "all have run", func() bool { return len(work.payloads()) == 7 })
	if work.most != 2 && work.most != 1 { // at most two tasks at a time, because there are two keys
		t.Errorf("%d ran at a time", work.most)
	}
}

// A key's line has the tasks that were put off for this key. The first task of the line may have
// been deleted or archived, or its asynq queue may be paused. The tasks behind the first task must
// not wait for it.
func TestALineGoesOnWithoutItsFirstTask(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, q *queue, low, id string){
		"deleted":  func(t *testing.T, q *queue, low, id string) { must(t, q.inspector.DeleteTask(low, id)) },
		"archived": func(t *testing.T, q *queue, low, id string) { must(t, q.inspector.ArchiveTask(low, id)) },
		"paused":   func(t *testing.T, q *queue, low, id string) { must(t, q.inspector.PauseQueue(low)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			low := q.name + "-low"
			lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
			must(t, err)
			work := &record{}
			q.workers(q.wakingGuard(asynqlock.Snooze(time.Hour)), 2, work, low)
			first := q.enqueueAndWait(numbered(0), asynq.Queue(low))
			await(t, "it is put off", func() bool {
				info, err := q.inspector.GetTaskInfo(low, first.ID)
				return err == nil && info.State == asynq.TaskStateRetry
			})
			second := q.enqueue("job", numbered(1))
			await(t, "it is put off", func() bool { return q.state(second.ID) == "retry after 0 retries" })
			end(t, q, low, first.ID)
			must(t, lease.Release(t.Context()))
			await(t, "the task behind it has run", func() bool { return slices.Contains(work.payloads(), numbered(1)) })
			if name == "archived" {
				if info, err := q.inspector.GetTaskInfo(low, first.ID); err != nil || info.State != asynq.TaskStateArchived {
					t.Errorf("the archived task is %v, %v", info, err)
				}
			}
		})
	}
}

// A program deletes a task that was put off, and enqueues another task with the same ID for later.
// The line still has the ID, but the new task must not run before its time.
func TestAScheduledTaskIsNotWokenBeforeItsTime(t *testing.T) {
	t.Parallel()
	for name, repaired := range map[string]bool{"the key becomes free": false, "after a repair": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, work := newQueue(t), &record{}
			lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
			must(t, err)
			g := q.wakingGuard(asynqlock.Snooze(time.Hour))
			q.workers(g, 2, work)
			first := q.enqueue("job", numbered(0), asynq.TaskID(q.name)).ID
			await(t, "it is put off", func() bool { return q.state(first) == "retry after 0 retries" })
			must(t, q.inspector.DeleteTask(q.name, first))
			q.enqueue("job", numbered(0), asynq.TaskID(first), asynq.ProcessIn(time.Hour))
			second := q.enqueue("job", numbered(1)).ID
			await(t, "it is put off", func() bool { return q.state(second) == "retry after 0 retries" })
			if repaired {
				if n, err := g.RepairLine(t.Context(), busyKey); n != 1 || err != nil {
					t.Errorf("removed %d, %v; want the entry of the scheduled task", n, err)
				}
			}
			must(t, lease.Release(t.Context()))
			await(t, "the task behind it has run", func() bool { return slices.Contains(work.payloads(), numbered(1)) })
			if got := q.state(first); got != "scheduled after 0 retries" || len(work.payloads()) != 1 {
				t.Errorf("the scheduled task is %s, and %v have run", got, work.payloads())
			}
		})
	}
}

// A task at the front of a line may be gone without the knowledge of any process that still lives:
// its process was stopped, and then the task was deleted, or ran in a version without this rule.
func TestATaskThatIsGoneStarvesNoTaskBehindIt(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	line := q.name + ":asynqlock:line:{" + busyKey + "}"
	gone := strconv.Itoa(len(q.name)) + ":" + q.name + ":gone"
	must(t, q.redis.ZAdd(t.Context(), line, redis.Z{Score: 1, Member: gone}).Err())
	work := &record{}
	q.workers(q.wakingGuard(asynqlock.Snooze(time.Hour)), 2, work)
	q.enqueue("job", numbered(0))
	await(t, "the task behind it has run", func() bool { return len(work.payloads()) == 1 })
}

// A process that is stopped calls the next task of a line when its last handler ends. No other
// process knows of this line.
func TestTheTasksOfAStoppedProcessFollowItsLastTask(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	work := newWork()
	old := q.wakingGuard(asynqlock.Snooze(time.Hour))
	mux := asynq.NewServeMux()
	mux.Use(old.Middleware)
	mux.Handle("job", work)
	server := asynq.NewServerFromRedisClient(q.redis, old.Configure(promptConfig(asynq.Config{Concurrency: 4, ShutdownTimeout: patience}, q.name)))
	must(t, server.Start(mux))
	q.enqueue("job", numbered(0))
	next(t, work)
	for n := range 2 {
		info := q.enqueue("job", numbered(n+1))
		await(t, "it is put off", func() bool { return q.state(info.ID) == "retry after 0 retries" })
	}
	must(t, old.Stop(t.Context()))
	server.Stop() // takes no more tasks
	work.end <- struct{}{}
	server.Shutdown()
	q.workers(q.wakingGuard(asynqlock.Snooze(time.Hour)), 4, work)
	for range 2 {
		next(t, work)
		work.end <- struct{}{}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The line is only an index. If the line is lost, its tasks come back after their pauses.
func TestNoTaskIsLostWithItsLine(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	work := &record{}
	g := q.wakingGuard(asynqlock.Snooze(time.Second))
	q.workers(g, 4, work)
	for n := range 5 {
		q.enqueueAndWait(numbered(n))
	}
	must(t, g.Stop(t.Context())) // afterwards no watcher waits for the key
	keys, err := q.redis.Keys(t.Context(), q.name+":asynqlock:*").Result()
	must(t, err)
	must(t, q.redis.Del(t.Context(), keys...).Err())
	must(t, lease.Release(t.Context()))
	await(t, "all have run", func() bool { return len(work.payloads()) == 5 })
	if len(keys) == 0 {
		t.Error("there was no line")
	}
}

// A task may succeed, fail or be dropped. However a task ends, its end wakes the next task.
func TestTheNextTaskIsWokenHoweverTheOneBeforeItEnds(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	var runs atomic.Int32
	work := &record{}
	q.workers(q.wakingGuard(asynqlock.Once(time.Minute), asynqlock.Snooze(time.Hour)), 4, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		if runs.Add(1) == 1 {
			time.Sleep(300 * time.Millisecond) //nolint:forbidigo // the work
			return errors.Join(errors.New("the first run fails for good"), asynq.SkipRetry)
		}
		return work.ProcessTask(ctx, t)
	}))
	q.enqueueAndWait(numbered(0))
	await(t, "it runs", func() bool { return runs.Load() == 1 })
	for n := range 4 {
		q.enqueueAndWait(numbered(n + 1))
	}
	await(t, "nothing is left but the failed task", func() bool {
		info, err := q.inspector.GetQueueInfo(q.name)
		return err == nil && info.Size == info.Archived && info.Archived == 1
	})
	if got := work.payloads(); len(got) != 1 {
		t.Errorf("%v ran after the first task had failed, want one task: it does the work that Once remembers", got)
	}
}

// An operator sees who waits for a key, and the text of each task that waits behind others names
// the first of them. Entries of tasks that are gone can be removed.
func TestALineCanBeSeenAndRepaired(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	lease, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	work := &record{}
	g := q.wakingGuard(asynqlock.Snooze(time.Hour))
	q.workers(g, 2, work)
	var ids []string
	for n := range 3 {
		id := q.enqueue("job", numbered(n)).ID
		await(t, "it is put off", func() bool { return q.state(id) == "retry after 0 retries" })
		ids = append(ids, id)
	}
	info, err := q.inspector.GetTaskInfo(q.name, ids[2])
	must(t, err)
	if !strings.Contains(info.LastErr, "the first is "+ids[0]+" in the queue "+q.name) {
		t.Errorf("the text of the last task is %q", info.LastErr)
	}
	must(t, q.inspector.DeleteTask(q.name, ids[1]))
	tasks, err := g.Line(t.Context(), busyKey)
	must(t, err)
	for i, want := range []asynq.TaskState{asynq.TaskStateRetry, 0, asynq.TaskStateRetry} {
		if len(tasks) != 3 || tasks[i].ID != ids[i] || tasks[i].State != want || tasks[i].Queue != q.name || tasks[i].Arrived.IsZero() {
			t.Fatalf("the line is %+v, want %v", tasks, ids)
		}
	}
	removed, err := g.RepairLine(t.Context(), busyKey)
	must(t, err)
	if left, err := g.Line(t.Context(), busyKey); removed != 1 || err != nil || len(left) != 2 {
		t.Errorf("removed %d, left %+v, %v", removed, left, err)
	}
	must(t, lease.Release(t.Context()))
	await(t, "both have run", func() bool { return len(work.payloads()) == 2 })
	if _, err := guard(t, q.locker()).Line(t.Context(), busyKey); !errors.Is(err, locker.ErrUnsupported) {
		t.Errorf("without WithWaking: %v", err)
	}
}

// A line is repaired while a task runs that others may run beside. The repair must not keep those
// tasks out until the running task has ended.
func TestARepairKeepsNoTaskOutThatMayRunBesideOthers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		locker func(c locker.Client, opts ...locker.SingleOption) (*locker.Engine, error)
		rule   locker.Rule
	}{
		"Shared": {locker.NewReadWrite, locker.Rule{Mode: locker.Shared}},
		"Limit": {func(c locker.Client, opts ...locker.SingleOption) (*locker.Engine, error) {
			return locker.NewSemaphore(c, 1, opts...)
		}, locker.Rule{Limit: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, work := newQueue(t), newWork()
			l, err := tc.locker(q.redis, locker.WithPrefix(q.name+":"))
			must(t, err)
			t.Cleanup(func() { must(t, l.Close(context.Background())) })
			g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
				asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Rule(tc.rule), asynqlock.Snooze(time.Hour)))
			q.stop(g)
			q.workers(g, 4, work)
			q.enqueue("job", numbered(0))
			next(t, work)
			t.Cleanup(func() { close(work.end) })
			queue, id := q.failedTask("-unserved", busyKey)
			q.putInLine(busyKey, queue, id)
			q.record(fmt.Sprintf("%d.%d.0.%s", tc.rule.Mode, tc.rule.Limit, busyKey), time.Now().Add(time.Hour))
			removed, err := g.RepairLine(t.Context(), busyKey)
			must(t, err)
			second := q.enqueue("job", numbered(1)).ID
			if got := next(t, work); got != second || removed != 0 {
				t.Errorf("%s runs, %d removed; want %s and 0", got, removed, second)
			}
		})
	}
}

// failedTask enqueues a task of key, in a queue with this suffix, whose first run fails. asynq
// would retry the task after an hour. failedTask returns the queue and the ID of the task.
func (q *queue) failedTask(suffix, key string) (queue, id string) {
	q.t.Helper()
	cfg := promptConfig(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}, q.name+suffix)
	server := asynq.NewServerFromRedisClient(q.redis, cfg)
	must(q.t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("the first run fails") })))
	defer server.Shutdown()
	payload := fmt.Sprintf(`{"account":%q}`, strings.TrimPrefix(key, "account:"))
	info, err := q.client.EnqueueContext(q.t.Context(), asynq.NewTask("job", []byte(payload)), asynq.Queue(q.name+suffix))
	must(q.t, err)
	await(q.t, "it has failed", func() bool {
		now, err := q.inspector.GetTaskInfo(info.Queue, info.ID)
		return err == nil && now.State == asynq.TaskStateRetry
	})
	return info.Queue, info.ID
}

// putInLine puts a task into the line of key, behind those that are there.
func (q *queue) putInLine(key, queue, id string) {
	q.t.Helper()
	now := float64(time.Now().UnixMicro())
	must(q.t, q.redis.ZAdd(q.t.Context(), q.name+":asynqlock:line:{"+key+"}", redis.Z{Score: now, Member: fmt.Sprintf("%d:%s:%s", len(queue), queue, id)}).Err())
}

// record records in the index that a process watches the line with this entry until then.
func (q *queue) record(entry string, until time.Time) {
	q.t.Helper()
	must(q.t, q.redis.ZAdd(q.t.Context(), q.name+":asynqlock:lines", redis.Z{Score: float64(until.UnixMicro()), Member: entry}).Err())
}

// vanishing is a Locker that ends a watcher's wait for busyKey soon. By then, the line of this key
// is gone.
type vanishing struct {
	locker.Locker
	q     *queue
	ended atomic.Int32
}

func (v *vanishing) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	if r.Name != "asynq-wake" || r.Key != busyKey {
		return v.Locker.Acquire(ctx, r)
	}
	r.Wait = 50 * time.Millisecond
	lease, err := v.Locker.Acquire(ctx, r)
	v.q.redis.Del(context.WithoutCancel(ctx), v.q.name+":asynqlock:line:{"+busyKey+"}")
	v.ended.Add(1)
	return lease, err
}

// The watcher of a busy key ends when the line of this key is gone. Its process still takes over
// the lines of other keys, also if the front of such a line is gone.
func TestAProcessWhoseLinesVanishTakesOtherLinesOver(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	l := q.locker()
	v := &vanishing{Locker: l, q: q}
	g := guardOf(t, v, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Snooze(time.Hour)))
	q.stop(g)
	_, err := q.locker().Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	sleeping, id := q.failedTask("", "account:7")
	q.workers(g, 4, work)
	until := time.Now().Add(idleBound)
	for n := 0; time.Now().Before(until); n++ {
		before := v.ended.Load()
		q.enqueue("job", numbered(n))
		await(t, "its watcher has ended", func() bool { return v.ended.Load() > before })
		if n == 0 {
			q.putInLine("account:7", q.name, "gone")
			q.putInLine("account:7", sleeping, id)
			q.record("0.0.0.account:7", time.Now())
		}
		if len(work.payloads()) > 0 {
			return
		}
	}
	t.Error("the task of the other line has not run")
}

// crowded is a Locker that counts the watchers that are refused because a key has too many waiters.
type crowded struct {
	locker.Locker
	refused atomic.Int32
}

func (c *crowded) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	lease, err := c.Locker.Acquire(ctx, r)
	if r.Name == "asynq-wake" && errors.Is(err, locker.ErrTooManyWaiters) {
		c.refused.Add(1)
	}
	return lease, err
}

// A key of this process has as many waiters as WithMaxWaiters allows, so the watcher of this key is
// refused. The process still takes over the lines of other keys.
func TestAProcessWithACrowdedKeyTakesOtherLinesOver(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{}
	other := q.locker()
	_, err := other.Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	l := &crowded{Locker: q.locker(locker.WithMaxWaiters(1))}
	go func() { _, _ = l.Acquire(t.Context(), locker.Rule{Key: busyKey}) }()
	await(t, "the key has a waiter", func() bool {
		info, err := other.Inspect(t.Context(), busyKey)
		return err == nil && info.Waiters == 1
	})
	g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Snooze(time.Hour)))
	q.stop(g)
	sleeping, id := q.failedTask("", "account:7")
	q.workers(g, 4, work)
	until := time.Now().Add(idleBound)
	for n := 0; time.Now().Before(until); n++ {
		before := l.refused.Load()
		q.enqueue("job", numbered(n))
		await(t, "its watcher is refused", func() bool { return l.refused.Load() > before })
		if n == 0 {
			q.putInLine("account:7", sleeping, id)
			q.record("0.0.0.account:7", time.Now())
		}
		if len(work.payloads()) > 0 {
			return
		}
	}
	t.Error("the task of the other line has not run")
}
