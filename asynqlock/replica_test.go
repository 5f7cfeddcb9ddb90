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

// replica is one of several processes that run the same schedule, with a tick in each second. It
// prints each tick that it enqueues, with the time.
var replica = proc.Register("scheduler", func(args []string) {
	addr, queue, way := args[0], args[1], args[2]
	var begun atomic.Int32
	// begin is called at the beginning of a tick. If the parent asks for it, the process pauses
	// itself at the second tick.
	begin := func() {
		if begun.Add(1) == 2 && len(args) > 3 {
			standStill()
		}
	}
	c := redis.NewClient(&redis.Options{Addr: addr})
	l, err := locker.New(c, locker.WithPrefix(queue+":"))
	if err != nil {
		panic(err)
	}
	base := asynq.SchedulerOpts{Logger: quiet{}, PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
		fmt.Println("tick", time.Now().Unix(), err)
	}}
	tick := func(s *asynq.Scheduler) (*asynq.Scheduler, error) {
		// Each process has a payload of its own, so the ticks of two processes have different
		// slots. In this test, the claim of a slot therefore cannot prevent a second tick.
		_, err := s.Register("@every 1s", asynq.NewTask("tick", []byte(strconv.Itoa(os.Getpid())), asynq.Queue(queue)))
		return s, err
	}
	switch way {
	case "scheduler":
		err = asynqlock.RunScheduler(context.Background(), l, locker.Rule{TTL: 2 * time.Second}, func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			fmt.Println("leads")
			passes := opts.PreEnqueueFunc
			opts.PreEnqueueFunc = func(task *asynq.Task, options []asynq.Option) {
				if task.Type() != "asynqlock:probe" {
					begin()
				}
				passes(task, options)
			}
			return tick(asynq.NewSchedulerFromRedisClient(c, opts))
		}, asynqlock.WithSchedulerBase(base))
	case "manager":
		err = asynqlock.RunScheduler(context.Background(), l, locker.Rule{TTL: 2 * time.Second}, func(opts *asynq.SchedulerOpts) (*asynq.PeriodicTaskManager, error) {
			fmt.Println("leads")
			return asynq.NewPeriodicTaskManager(asynq.PeriodicTaskManagerOpts{
				PeriodicTaskConfigProvider: schedule(queue), RedisUniversalClient: c, SchedulerOpts: opts,
			})
		}, asynqlock.WithSchedulerBase(base))
	case "unguarded": // an unchanged scheduler, which runs under the lock
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

// standStill pauses this process, and returns when the process continues. It waits for a moment,
// because the signal may stop this thread a little later than the call.
func standStill() {
	last := time.Now()
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	for now := time.Now(); now.Sub(last) < time.Second; now = time.Now() {
		last = now
	}
}

// schedule is the provider of a PeriodicTaskManager. Its text is the spec of its only entry.
type schedule string

func (queue schedule) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) {
	return []*asynq.PeriodicTaskConfig{{Cronspec: "@every 1s", Task: asynq.NewTask("tick", nil, asynq.Queue(string(queue)))}}, nil
}

func start(t *testing.T, q *queue, way string, more ...string) *proc.Child {
	t.Helper()
	return replica.Start(t, append([]string{redistest.Shared(t).Addr(), q.name, way}, more...)...)
}

// ticks reads n ticks from the output of a replica.
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
			// The expected time is the TTL and some ms, but the machine may be slow.
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

// A leader was paused when a tick began. When it is resumed, it is no longer the leader, but it
// continues the tick.
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
				return // a late tick has come, which shows that the guard is needed
			}
			ticks(t, second, 2) // in this time, the resumed process could enqueue its late tick
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
