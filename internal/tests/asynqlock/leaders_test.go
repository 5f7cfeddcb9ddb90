package asynqlock_test

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
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
	}, asynqlock.WithCatchUp(time.Hour),
		asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: silent{}}),
		asynqlock.WithOnLeading(func(leads bool) { fmt.Println("leads", leads) })))
})

// Three processes run a schedule, and the leader is killed again and again. The task of each
// tick runs once, even if it has ended long before the next leader checks whether the tick was
// enqueued.
func TestNoTickIsLostOrDoubledWhenLeadersAreKilled(t *testing.T) {
	server := redistest.Shared(t)
	c := server.Client(t)
	queue := fmt.Sprint("ticks", runs.Add(1))
	var mu sync.Mutex
	ticks := make(map[int]int)
	mux := asynq.NewServeMux()
	mux.HandleFunc("tick", func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		slot, err := strconv.Atoi(id[strings.LastIndexByte(id, '-')+1:])
		mu.Lock()
		defer mu.Unlock()
		ticks[slot]++
		return err
	})
	worker := asynq.NewServerFromRedisClient(c, prompt(queue))
	if err := worker.Start(mux); err != nil {
		t.Fatal(err)
	}
	defer worker.Shutdown()
	newest := func() (newest int) {
		mu.Lock()
		defer mu.Unlock()
		for slot := range ticks {
			newest = max(newest, slot)
		}
		return newest
	}
	await := func(slot int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); newest() < slot; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the newest tick is %d, want %d", newest(), slot)
			}
		}
	}

	children := make([]*proc.Child, 3)
	const kills = 5
	for round := range kills {
		for i, child := range children {
			if child == nil {
				children[i] = leader.Start(t, server.Addr(), queue)
			}
		}
		holder := leading(t, c, queue)
		await(newest() + 2 + 1)
		for i, child := range children {
			if child.Pid() == holder {
				if round%2 == 0 { // in every second round, the leader is killed at the time of a tick
					time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
				}
				child.Kill()
				children[i] = nil
			}
		}
		await(int(time.Now().Unix()))
	}
	await(int(time.Now().Unix()) + 2)
	mu.Lock()
	defer mu.Unlock()
	slots := make([]int, 0, len(ticks))
	for slot, n := range ticks {
		slots = append(slots, slot)
		if n != 1 {
			t.Errorf("the tick of %d came %d times", slot, n)
		}
	}
	sort.Ints(slots)
	if got, want := len(slots), slots[len(slots)-1]-slots[0]+1; got != want {
		t.Errorf("%d ticks were lost: %v", want-got, slots)
	}
	t.Logf("%d kills, %d seconds, %d ticks, each of them once", kills, slots[len(slots)-1]-slots[0]+1, len(slots))
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
