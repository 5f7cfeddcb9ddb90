package asynqlock_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
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

// replica is one of several processes that run the same schedule, a tick in each second. It says
// when it enqueued which.
var replica = proc.Register("scheduler", func(args []string) {
	addr, queue, way := args[0], args[1], args[2]
	var begun atomic.Int32
	begin := func() { // of a tick: the second is where this process is stopped, if it is asked to be
		if begun.Add(1) == 2 && len(args) > 3 {
			standStill()
		}
	}
	c := redis.NewClient(&redis.Options{Addr: addr})
	l, err := locker.NewSingle(c, locker.WithPrefix(queue+":"))
	if err != nil {
		panic(err)
	}
	base := asynq.SchedulerOpts{Logger: quiet{}, PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
		fmt.Println("tick", time.Now().Unix(), err)
	}}
	tick := func(s *asynq.Scheduler) (*asynq.Scheduler, error) {
		// A payload for each process: no two of these ticks have the same slot, so it is not the
		// slots that keep one back.
		_, err := s.Register("@every 1s", asynq.NewTask("tick", []byte(strconv.Itoa(os.Getpid())), asynq.Queue(queue)))
		return s, err
	}
	switch way {
	case "scheduler":
		err = asynqlock.RunScheduler(context.Background(), l, func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			fmt.Println("leads")
			passes := opts.PreEnqueueFunc
			opts.PreEnqueueFunc = func(task *asynq.Task, options []asynq.Option) {
				if task.Type() != "asynqlock:probe" {
					begin()
				}
				passes(task, options)
			}
			return tick(asynq.NewSchedulerFromRedisClient(c, opts))
		}, asynqlock.SchedulerTTL(2*time.Second), asynqlock.SchedulerBase(base))
	case "manager":
		err = asynqlock.RunPeriodicTaskManager(context.Background(), l, func(opts *asynq.SchedulerOpts) (*asynq.PeriodicTaskManager, error) {
			fmt.Println("leads")
			return asynq.NewPeriodicTaskManager(asynq.PeriodicTaskManagerOpts{
				PeriodicTaskConfigProvider: schedule(queue), RedisUniversalClient: c, SchedulerOpts: opts,
			})
		}, asynqlock.SchedulerTTL(2*time.Second), asynqlock.SchedulerBase(base))
	case "unguarded": // the lock alone, around a scheduler that knows nothing of it
		base.PreEnqueueFunc = func(*asynq.Task, []asynq.Option) { begin() }
		_ = locker.Run(context.Background(), l, locker.Rule{Key: "leader", TTL: 2 * time.Second}, func(ctx context.Context) error {
			fmt.Println("leads")
			s, err := tick(asynq.NewSchedulerFromRedisClient(c, &base))
			if err != nil {
				return err
			}
			if err := s.Start(); err != nil {
				return err
			}
			<-ctx.Done()
			s.Shutdown()
			return nil
		})
		select {}
	}
	panic(err)
})

// standStill stops this process, and returns in the very moment in which it runs on. The signal may
// stop this thread a little later.
func standStill() {
	last := time.Now()
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	for now := time.Now(); now.Sub(last) < time.Second; now = time.Now() {
		last = now
	}
}

// schedule is what a PeriodicTaskManager asks for.
type schedule string

func (queue schedule) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) {
	return []*asynq.PeriodicTaskConfig{{Cronspec: "@every 1s", Task: asynq.NewTask("tick", nil, asynq.Queue(string(queue)))}}, nil
}

func start(t *testing.T, q *queue, way string, more ...string) *proc.Child {
	t.Helper()
	return replica.Start(t, append([]string{redistest.Shared(t).Addr(), q.name, way}, more...)...)
}

// ticks reads n ticks of a replica.
func ticks(t *testing.T, c *proc.Child, n int) (slots []int64) {
	t.Helper()
	for range n {
		var slot int64
		var err string
		if _, scan := fmt.Sscan(c.Expect(t, "tick"), &slot, &err); scan != nil || err != "<nil>" {
			t.Fatalf("%v, %s", scan, err)
		}
		slots = append(slots, slot)
	}
	return slots
}

func TestOneReplicaEnqueuesAndAnotherTakesOverWhenItIsKilled(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"scheduler", "manager"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			first := start(t, q, way)
			first.Expect(t, "leads")
			second := start(t, q, way)
			slots := ticks(t, first, 2)
			first.Kill()
			killed := time.Now()
			second.Expect(t, "leads")
			// The bound is the TTL and some ms; the machine may be slow.
			if took := time.Since(killed); took > 10*time.Second {
				t.Errorf("the other one leads after %v", took)
			}
			slots = append(slots, ticks(t, second, 2)...)
			distinct := slices.Compact(slices.Clone(slots))
			tasks, err := q.inspector.ListPendingTasks(q.name)
			if err != nil {
				t.Fatal(err)
			}
			if len(distinct) != 4 || len(tasks) < 4 {
				t.Errorf("ticks at %v, %d tasks", slots, len(tasks))
			}
		})
	}
}

// A leader that was stopped when a tick began goes on with it as soon as it runs on, and is not the
// leader any more.
func TestALeaderThatWasStoppedEnqueuesNoLateTick(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"scheduler", "unguarded"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			first := start(t, q, way, "stops")
			ticks(t, first, 1)
			first.AwaitStop()
			second := start(t, q, way)
			second.Expect(t, "leads")
			ticks(t, second, 2)
			resumed := time.Now().Unix()
			first.Resume()
			if way == "unguarded" {
				if slot := ticks(t, first, 1)[0]; slot < resumed {
					t.Errorf("its tick at %d came before it ran on, at %d", slot, resumed)
				}
				return // without that late tick there would be nothing to guard against
			}
			ticks(t, second, 2) // time enough for the one who runs on
			second.Kill()
			for line := first.Expect(t, ""); line != "leads"; line = first.Expect(t, "") {
				var slot int64
				if _, err := fmt.Sscanf(line, "tick %d", &slot); err != nil || slot >= resumed {
					t.Errorf("%s: it ran on at %d, and did not lead", line, resumed)
				}
			}
			ticks(t, first, 1)
		})
	}
}
