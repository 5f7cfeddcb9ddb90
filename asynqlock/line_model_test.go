package asynqlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// lineWorker is a version of a service, in a process of its own. Its rules are for the types in its
// arguments; tasks of other types run without a lock. It stops as a deployment stops it, at
// SIGTERM.
var lineWorker = proc.Register("asynq worker of a line", func(args []string) {
	addr, queue, types, work, watches := args[0], args[1], args[2], args[3], args[4] == "watches"
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	l, err := locker.New(c, locker.WithTTL(2*time.Second), locker.WithPrefix(queue+":"))
	fatal(err)
	opts := []asynqlock.Option{asynqlock.WithWaking(c), asynqlock.WithPrefix(queue + ":")}
	for name := range strings.SplitSeq(types, ",") {
		opts = append(opts, asynqlock.On(name, asynqlock.Template(busyKey)))
	}
	g, err := asynqlock.New(l, opts...)
	fatal(err)
	if !watches {
		asynqlock.TakeWatchersAway(g)
	}
	longest, err := time.ParseDuration(work)
	fatal(err)
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	handle := asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		_, guarded := locker.FromContext(ctx)
		if guarded {
			c.RPush(ctx, queue+":begun", string(t.Payload())+" "+strconv.FormatInt(time.Now().UnixMilli(), 10))
		}
		time.Sleep(longest/4 + rand.N(longest*3/4)) //nolint:forbidigo // the work
		return nil
	})
	mux.Handle("a", handle)
	mux.Handle("b", handle)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := asynq.NewServerFromRedisClient(c, g.Configure(asynq.Config{
		Concurrency: 4, Logger: quiet{}, Queues: map[string]int{queue: 1, queue + "-low": 1},
	}))
	fmt.Println("ready")
	fatal(g.Run(ctx, server, mux))
})

func fatal(err error) {
	if err != nil {
		panic(err)
	}
}

// lineModel drives the processes and the tasks of one key, and measures how long the key is idle
// although a task could run.
type lineModel struct {
	*queue
	low     string
	watches string
	rng     *rand.Rand
	holder  *locker.Engine
	workers []*proc.Child
	tasks   int

	begun   int64         // how many guarded tasks have begun
	idleFor time.Duration // for how long the key has been free although a task can run
	looked  time.Time
	worst   time.Duration
}

func newLineModel(t *testing.T, seed uint64, watches string) *lineModel {
	t.Helper()
	q := newQueue(t)
	m := &lineModel{queue: q, low: q.name + "-low", watches: watches, rng: rand.New(rand.NewPCG(seed, 1)), holder: q.locker()}
	t.Logf("seed %d", seed)
	for range 2 {
		m.startWorker("a,b", "200ms")
	}
	return m
}

func (m *lineModel) startWorker(types, work string) {
	w := lineWorker.Start(m.t, redistest.Shared(m.t).Addr(), m.name, types, work, m.watches)
	w.Expect(m.t, "ready")
	m.workers = append(m.workers, w)
}

// end ends the i-th worker by the signal.
func (m *lineModel) end(i int, how syscall.Signal) {
	w := m.workers[i]
	m.workers = slices.Delete(m.workers, i, i+1)
	if how == syscall.SIGKILL {
		w.Kill()
		return
	}
	must(m.t, syscall.Kill(w.Pid(), how))
	if code := w.Wait(m.t); code != 0 {
		m.t.Errorf("the worker ended with code %d", code)
	}
}

func (m *lineModel) enqueueTask(typename string, opts ...asynq.Option) {
	m.tasks++
	queue := m.name
	if m.rng.IntN(2) == 0 {
		queue = m.low
	}
	_, err := m.client.EnqueueContext(m.t.Context(), asynq.NewTask(typename, []byte(strconv.Itoa(m.tasks))), append(opts, asynq.Queue(queue))...)
	must(m.t, err)
}

// front returns the queue and the ID of the task at the front of the line, or "".
func (m *lineModel) front() (queue, id string) {
	entries, err := m.redis.ZRange(m.t.Context(), m.name+":asynqlock:line:{"+busyKey+"}", 0, 0).Result()
	must(m.t, err)
	if len(entries) == 0 {
		return "", ""
	}
	rest := entries[0][strings.Index(entries[0], ":")+1:]
	i := strings.LastIndex(rest, ":")
	return rest[:i], rest[i+1:]
}

// step does one thing that may happen in a service. An error of the Inspector is ignored: the task
// has begun meanwhile, or is gone.
func (m *lineModel) step() string {
	switch n := m.rng.IntN(20); {
	case n < 3:
		for range 10 {
			m.enqueueTask([]string{"a", "b"}[m.rng.IntN(2)])
		}
		return "enqueue tasks"
	case n < 4:
		m.enqueueTask("a", asynq.Deadline(time.Now().Add(2*time.Second)))
		return "enqueue a task with a deadline"
	case n < 7:
		if queue, id := m.front(); id != "" {
			_ = m.inspector.DeleteTask(queue, id)
		}
		return "delete the front"
	case n < 9:
		if queue, id := m.front(); id != "" {
			_ = m.inspector.ArchiveTask(queue, id)
		}
		return "archive the front"
	case n < 11:
		_ = m.inspector.PauseQueue(m.low)
		return "pause a queue"
	case n < 13:
		_ = m.inspector.UnpauseQueue(m.low)
		return "resume a queue"
	case n < 14:
		lease, err := m.holder.Acquire(m.t.Context(), locker.Rule{Key: busyKey})
		must(m.t, err)
		pause(300 * time.Millisecond)
		must(m.t, lease.Release(m.t.Context()))
		return "another program holds the key"
	case n < 15:
		w := m.workers[m.rng.IntN(len(m.workers))]
		w.Pause()
		pause(time.Duration(m.rng.IntN(1000)) * time.Millisecond)
		w.Resume()
		return "pause a process"
	case n < 17:
		m.end(m.rng.IntN(len(m.workers)), syscall.SIGTERM)
		m.startWorker([]string{"a", "a,b"}[m.rng.IntN(2)], "200ms")
		return "deploy another version"
	case n < 19:
		m.end(m.rng.IntN(len(m.workers)), syscall.SIGKILL)
		m.startWorker([]string{"a", "a,b"}[m.rng.IntN(2)], "200ms")
		return "kill a process"
	default:
		for len(m.workers) > 0 {
			m.end(0, []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[m.rng.IntN(2)])
		}
		for range 2 {
			m.startWorker("a,b", "200ms")
		}
		return "restart everything"
	}
}

// lineRun returns how long the model runs: a longer time for a recorded run is in the environment.
func lineRun(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("LATCHKIT_LINE_RUN")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

func pause(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the time between steps of a model

// watch watches the key for the time d after a step, and returns how long the key has been idle by
// then. A step begins a new measurement.
func (m *lineModel) watch(d time.Duration) time.Duration {
	m.idleFor, m.looked = 0, time.Now()
	for end := time.Now().Add(d); time.Now().Before(end); pause(10 * time.Millisecond) {
		m.look()
	}
	return m.idleFor
}

// look finds out whether the key is idle. If looks come late, the machine has other work, and the
// processes of the model are late as well: so a look adds no more than lateLook to the idle time.
func (m *lineModel) look() {
	passed := min(time.Since(m.looked), lateLook)
	m.looked = time.Now()
	held, err := m.redis.Exists(m.t.Context(), m.name+":"+busyKey).Result()
	must(m.t, err)
	begun, err := m.redis.LLen(m.t.Context(), m.name+":begun").Result()
	must(m.t, err)
	if held > 0 || begun > m.begun || !m.canRun() {
		m.begun, m.idleFor = begun, 0
		return
	}
	m.idleFor += passed
	m.worst = max(m.worst, m.idleFor)
}

// lateLook is several times as long as the time between two looks on an idle machine.
const lateLook = 50 * time.Millisecond

// canRun reports whether a task of the key could run: it is guarded in every version, it waits, and
// its queue is not paused. A task of a process that was killed is active until asynq recovers it.
func (m *lineModel) canRun() bool {
	for _, queue := range []string{m.name, m.low} {
		info, err := m.inspector.GetQueueInfo(queue)
		if err != nil || info.Paused {
			continue
		}
		for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
			m.inspector.ListPendingTasks, m.inspector.ListRetryTasks,
		} {
			tasks, err := list(queue)
			must(m.t, err)
			if slices.ContainsFunc(tasks, func(t *asynq.TaskInfo) bool { return t.Type == "a" && t.Deadline.IsZero() }) {
				return true
			}
		}
	}
	return false
}

// run makes steps until d is over, or until the key was idle for longer than bound.
func (m *lineModel) run(d, bound time.Duration) (idle time.Duration, steps []string) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		steps = append(steps, m.step())
		idle := m.watch(time.Duration(m.rng.IntN(800)) * time.Millisecond)
		for 0 < idle && idle <= bound { // until a task begins
			m.look()
			idle = m.idleFor
			pause(10 * time.Millisecond)
		}
		if idle > bound {
			return idle, steps
		}
	}
	return 0, steps
}

// idleBound is longer than the 2 s that are promised, because the machines of tests have other
// work. Without the promise, a key is idle for up to 30 s.
const idleBound = 6 * time.Second

// Tasks of one key are enqueued, deleted, archived and paused, and versions of the service with
// other rules are deployed, paused and killed. If the key is free and a task of it can run, one
// runs.
func TestAFreeKeyIsNeverIdleWhileATaskCanRun(t *testing.T) {
	t.Parallel()
	m := newLineModel(t, uint64(time.Now().UnixNano()), "watches")
	idle, steps := m.run(lineRun(t), idleBound)
	t.Logf("%d steps, %d tasks, %d runs under the lock, the key was idle for at most %v", len(steps), m.tasks, m.begun, m.worst)
	if idle > 0 {
		t.Errorf("the key was idle for %v after %q", idle, steps[max(0, len(steps)-8):])
	}
}

// Without watchers, the model finds a key that is idle. With this seed it finds one soon.
func TestTheModelOfALineFindsAMissingWatcher(t *testing.T) {
	t.Parallel()
	m := newLineModel(t, 2, "blind")
	idle, steps := m.run(2*time.Minute, idleBound)
	t.Logf("%d steps, the key was idle for %v", len(steps), idle)
	if idle == 0 {
		t.Error("the key was never idle, although nobody watched its line")
	}
}

// The only worker is stopped as in a deployment, and the next version starts when it has ended. The
// tasks that the old process has put off do not wait until their pauses of 30 s are over.
func TestAGracefulRestartKeepsAHotKeyMoving(t *testing.T) {
	t.Parallel()
	m := newLineModel(t, 1, "watches")
	m.end(1, syscall.SIGTERM)
	const all = 30
	for range all {
		m.enqueueTask("a")
	}
	await(t, "some have begun", func() bool { return m.redis.LLen(t.Context(), m.name+":begun").Val() >= 5 })
	m.end(0, syscall.SIGTERM)
	m.startWorker("a,b", "200ms")
	started := time.Now()
	at := m.redis.LLen(t.Context(), m.name+":begun").Val()
	await(t, "the next one has begun", func() bool { return m.redis.LLen(t.Context(), m.name+":begun").Val() > at })
	took := time.Since(started)
	await(t, "all have begun", func() bool { return m.redis.LLen(t.Context(), m.name+":begun").Val() == all })
	t.Logf("the new version went on after %v", took)
	if took > idleBound {
		t.Errorf("the key stood still for %v", took)
	}
}
