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

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// runSchedule runs a scheduler with one entry until stop is called.
func runSchedule(t *testing.T, q *queue, store *lockertest.Memory, spec string, opts ...asynqlock.SchedulerOption) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	base := []asynqlock.SchedulerOption{asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: quiet{}})}
	go func() {
		ended <- asynqlock.RunScheduler(ctx, lockertest.NewLocker(t, store), locker.Rule{Key: q.name}, func(o *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			s := asynq.NewSchedulerFromRedisClient(q.redis, o)
			_, err := s.Register(spec, asynq.NewTask("job", []byte(`{"account":"42"}`), asynq.Queue(q.name)))
			return s, err
		}, append(base, opts...)...)
	}()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// ticks returns the slots of the tasks that are in the queue.
func (q *queue) ticks() []int64 {
	q.t.Helper()
	tasks, err := q.inspector.ListPendingTasks(q.name, asynq.PageSize(1000))
	if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		q.t.Fatal(err)
	}
	var slots []int64
	for _, task := range tasks {
		slot, err := strconv.ParseInt(task.ID[strings.LastIndexByte(task.ID, '-')+1:], 10, 64)
		if err != nil {
			q.t.Fatalf("a tick has the ID %s", task.ID)
		}
		slots = append(slots, slot)
	}
	slices.Sort(slots)
	return slots
}

// slotsKey returns the Redis key of the slots of a schedule.
func (q *queue) slotsKey() string { return "asynqlock:ticks:{" + q.name + "}" }

// rewind sets the last tick of the schedule's only entry to a time in the past: age before now.
// mark follows the time in the value. rewind returns the tick's Unix time.
func (q *queue) rewind(t *testing.T, age time.Duration, mark string) (last int64) {
	t.Helper()
	var entry string
	await(t, "the entry is known", func() bool {
		values, err := q.redis.HGetAll(t.Context(), q.slotsKey()).Result()
		for entry = range values {
		}
		return err == nil && len(values) == 1
	})
	last = time.Now().Add(-age).Unix()
	must(t, q.redis.HSet(t.Context(), q.slotsKey(), entry, fmt.Sprint(last)+mark).Err())
	return last
}

// There may be slots between the last tick of one leader and the first tick of the next leader.
// Each of these slots is made up once.
func TestTicksAreMadeUp(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	runSchedule(t, q, store, "0 0 1 1 *", asynqlock.WithCatchUp(time.Hour))() // nothing is made up here, because the entry is new
	if n := len(q.ticks()); n != 0 {
		t.Fatalf("%d ticks of a new entry", n)
	}
	must(t, q.redis.Del(t.Context(), q.slotsKey()).Err())

	stop := runSchedule(t, q, store, "* * * * *", asynqlock.WithCatchUp(time.Hour))
	q.rewind(t, 0, "")
	stop()
	last := q.rewind(t, 10*time.Minute, "")
	var leads atomic.Int32
	stop = runSchedule(t, q, store, "* * * * *", asynqlock.WithCatchUp(time.Hour), asynqlock.WithOnLeading(func(yes bool) {
		if yes {
			leads.Add(1)
		} else {
			leads.Add(-1)
		}
	}))
	await(t, "they are made up", func() bool { return len(q.ticks()) >= 10 })
	if leads.Load() != 1 {
		t.Error("WithOnLeading was not called")
	}
	stop()
	if leads.Load() != 0 {
		t.Error("WithOnLeading was not called when the term was over")
	}
	slots := q.ticks()
	for i, slot := range slots {
		if slot%60 != 0 || slot <= last || i > 0 && slot != slots[i-1]+60 {
			t.Fatalf("ticks %v after %d, want each minute once", slots, last)
		}
	}
}

// A tick that is older than the window is not made up. A leader may have claimed a tick and died,
// before or after it enqueued the tick. Such a tick is enqueued only once.
func TestTicksAreMadeUpWithinTheWindowAndAfterACrash(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	stop := runSchedule(t, q, store, "* * * * *", asynqlock.WithCatchUp(3*time.Minute))
	q.rewind(t, 0, "")
	stop()
	last := q.rewind(t, 2*time.Hour, "?") // "?" means claimed: the leader died before or after it enqueued the tick
	stop = runSchedule(t, q, store, "* * * * *", asynqlock.WithCatchUp(3*time.Minute))
	await(t, "they are made up", func() bool { return len(q.ticks()) >= 3 })
	stop()
	slots := q.ticks()
	if slots[0] != last || len(slots) > 5 || slots[1] < time.Now().Add(-4*time.Minute).Unix() {
		t.Errorf("ticks %v, want the claimed one, %d, and those of 3 minutes", slots, last)
	}
	q.rewind(t, time.Since(time.Unix(slots[len(slots)-1], 0)), "?") // this slot was enqueued before, so its task exists
	stop = runSchedule(t, q, store, "* * * * *", asynqlock.WithCatchUp(3*time.Minute))
	await(t, "the claim is settled", func() bool {
		values, err := q.redis.HVals(t.Context(), q.slotsKey()).Result()
		return err == nil && len(values) == 1 && !strings.HasSuffix(values[0], "?")
	})
	stop()
	if after := q.ticks(); len(after) > len(slots)+1 || slices.Compact(slices.Clone(after))[len(after)-1] != after[len(after)-1] {
		t.Errorf("ticks %v became %v", slots, after)
	}
}

// Ticks are enqueued like other tasks: they carry the trace and the leader's fence, and a Unique
// tick is in the queue only once.
func TestTicksCarryTraceAndUnique(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]asynqlock.SchedulerOption{"": nil, "made up": {asynqlock.WithCatchUp(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, store := newQueue(t), lockertest.NewMemory()
			g := guardOf(t, lockertest.NewLocker(t, store), asynqlock.WithPropagator(shout{}),
				asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Unique()))
			var mu sync.Mutex
			var refused int
			base := asynq.SchedulerOpts{Logger: quiet{}, PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, asynq.ErrDuplicateTask) {
					refused++
				}
			}}
			stop := runSchedule(t, q, store, "@every 1s", append(more, asynqlock.WithSchedulerClient(g.Client(q.client, q.inspector)), asynqlock.WithSchedulerBase(base))...)
			await(t, "a second tick was refused", func() bool { mu.Lock(); defer mu.Unlock(); return refused > 0 })
			stop()
			tasks, err := q.inspector.ListPendingTasks(q.name)
			if err != nil || len(tasks) != 1 {
				t.Fatalf("%d tasks, %v", len(tasks), err)
			}
			fences := asynqlock.Fences(asynq.NewTaskWithHeaders("job", nil, tasks[0].Headers))
			if _, ok := tasks[0].Headers["shout"]; !ok || len(fences) != 1 || fences[0].Key != q.name {
				t.Errorf("the tick has the headers %v", tasks[0].Headers)
			}
		})
	}
}

// In an earlier version, a build function could replace the given PreEnqueueFunc, which lets only
// claimed ticks pass. Then, after the loss of a lock, three of nine seconds had two ticks.
func TestAReplacedPreEnqueueFuncIsRefused(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	run := func(own func(given func(*asynq.Task, []asynq.Option)) func(*asynq.Task, []asynq.Option)) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return asynqlock.RunScheduler(ctx, lockertest.NewLocker(t, lockertest.NewMemory()), locker.Rule{}, func(o *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			o.PreEnqueueFunc = own(o.PreEnqueueFunc)
			return asynq.NewSchedulerFromRedisClient(q.redis, o), nil
		}, asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: quiet{}}), asynqlock.WithOnLeading(func(bool) { cancel() }))
	}
	metrics := func(*asynq.Task, []asynq.Option) {}
	if err := run(func(func(*asynq.Task, []asynq.Option)) func(*asynq.Task, []asynq.Option) { return metrics }); err == nil || !strings.Contains(err.Error(), "WithSchedulerBase") {
		t.Errorf("%v, want that it is refused", err)
	}
	if err := run(func(given func(*asynq.Task, []asynq.Option)) func(*asynq.Task, []asynq.Option) {
		return func(task *asynq.Task, opts []asynq.Option) { metrics(task, opts); given(task, opts) }
	}); err != nil {
		t.Errorf("one that calls the function that was there: %v", err)
	}
}
