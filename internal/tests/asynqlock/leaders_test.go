package asynqlock_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

var pid = os.Getpid()

// leader is a process that runs a schedule with one tick each second, while it leads.
var leader = proc.Register("asynq scheduler", func(args []string) {
	addr, queue := args[0], args[1]
	c := redis.NewClient(&redis.Options{Addr: addr})
	l, err := locker.New(c, locker.WithPrefix(queue+":"))
	if err != nil {
		panic(err)
	}
	panic(asynqlock.RunScheduler(context.Background(), l, locker.Rule{Key: queue, TTL: 2 * time.Second}, func(o *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
		s := asynq.NewSchedulerFromRedisClient(c, o)
		_, err := s.Register("@every 1s", asynq.NewTask("tick", nil, asynq.Queue(queue)))
		return s, err
	}, asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: silent{}}),
		asynqlock.WithOnLeading(func(leads bool) { fmt.Println("leads", leads) })))
})

// Three processes run a schedule, and the leader is killed again and again, also at the time of a
// tick. Ticks are lost then. But the job ticks several times and its rule has Once, so it runs, and
// it runs once.
func TestAJobWithOnceRunsOnceWhenLeadersAreKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	c := server.Client(t)
	queue := fmt.Sprint("ticks", runs.Add(1))
	l, err := locker.New(c, locker.WithPrefix(queue+":"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	g, err := asynqlock.New(l, asynqlock.On("tick", asynqlock.Template("nightly"), asynqlock.Once(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	var delivered, ran atomic.Int32
	mux := asynq.NewServeMux()
	mux.Use(func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			defer delivered.Add(1)
			return next.ProcessTask(ctx, task)
		})
	}, g.Middleware)
	mux.HandleFunc("tick", func(context.Context, *asynq.Task) error { ran.Add(1); return nil })
	worker := asynq.NewServerFromRedisClient(c, g.Configure(prompt(queue)))
	if err := worker.Start(mux); err != nil {
		t.Fatal(err)
	}
	defer worker.Shutdown()

	children := make([]*proc.Child, 3)
	const kills = 5
	for round := range kills {
		for i, child := range children {
			if child == nil {
				children[i] = leader.Start(t, server.Addr(), queue)
			}
		}
		holder := leading(t, c, queue)
		for before, deadline := delivered.Load(), time.Now().Add(time.Minute); delivered.Load() == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no tick comes after %d kills", round)
			}
		}
		for i, child := range children {
			if child.Pid() == holder {
				if round%2 == 0 { // in every second round, the leader is killed at the time of a tick
					time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
				}
				child.Kill()
				children[i] = nil
			}
		}
	}
	if ran.Load() != 1 {
		t.Errorf("the job ran %d times in %d ticks, want once", ran.Load(), delivered.Load())
	}
}

// leading returns the process id of the leader, which it reads from the metadata of the lock.
func leading(t *testing.T, c *redis.Client, queue string) int {
	t.Helper()
	l, err := locker.New(c, locker.WithPrefix(queue+":"))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		info, err := l.Inspect(t.Context(), queue)
		if err != nil {
			t.Fatal(err)
		}
		if _, process, ok := strings.Cut(info.Metadata, ":"); info.Held && ok {
			n, err := strconv.Atoi(process)
			if err != nil {
				t.Fatalf("the lock has the metadata %q", info.Metadata)
			}
			return n
		}
	}
	t.Fatal("nobody leads")
	return 0
}
