package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	redisv8 "github.com/go-redis/redis/v8"
	"github.com/hibiken/asynq"
	"github.com/hibiken/asynq/x/rate"
)

// asynqRate is the semaphore of asynq's contrib module. The semaphore has no queue, so in the bench
// each waiter asks again after 1 ms. (The documentation of asynq proposes another way: a
// handler that gets no permit returns an error, and asynq retries the task. But this retry
// comes much later.) A permit belongs to a task, so each caller is a task of asynq that runs
// during the whole turn.
var asynqRate = contestant{
	name: "asynq x/rate 1ms", kind: peer, admits: true, sends: []string{"zrem"}, uncounted: []string{"zadd", "sadd"},
	open: func(s settings) (locks, error) { return openAsynqRate(s) },
}

// asynqTasks is the largest number of callers in a process that hold a permit or ask for one.
const asynqTasks = 64

type asynqRateLocks struct {
	client *redisv8.Client
	server *asynq.Server
	tasks  chan context.Context // the contexts of the tasks that no caller uses at present
	closed chan struct{}

	mu     sync.Mutex
	scopes map[string]*rate.Semaphore
}

// MakeRedisClient implements asynq.RedisConnOpt. The module requires a client of go-redis 8.
func (a *asynqRateLocks) MakeRedisClient() any { return a.client }

func openAsynqRate(s settings) (*asynqRateLocks, error) {
	a := &asynqRateLocks{
		client: redisv8.NewClient(&redisv8.Options{Addr: s.Addr}), tasks: make(chan context.Context, asynqTasks), closed: make(chan struct{}),
		scopes: make(map[string]*rate.Semaphore),
	}
	queue := fmt.Sprintf("bench-%d", s.Process)
	at := asynq.RedisClientOpt{Addr: s.Addr}
	tasks := asynq.NewClient(at)
	defer func() { _ = tasks.Close() }()
	for range asynqTasks {
		if _, err := tasks.Enqueue(asynq.NewTask("caller", nil), asynq.Queue(queue), asynq.Timeout(time.Hour)); err != nil {
			return nil, err
		}
	}
	a.server = asynq.NewServer(at, asynq.Config{Concurrency: asynqTasks, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel})
	err := a.server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		a.tasks <- ctx
		<-a.closed
		return nil
	}))
	return a, err
}

func (a *asynqRateLocks) semaphore(scope string) *rate.Semaphore {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.scopes[scope]
	if s == nil {
		s = rate.NewSemaphore(a, scope, mostPermits)
		a.scopes[scope] = s
	}
	return s
}

func (a *asynqRateLocks) Lock(ctx context.Context, key string) (hold, error) {
	h := &asynqRateHold{locks: a, semaphore: a.semaphore(key)}
	select {
	case h.task = <-a.tasks:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for {
		granted, err := h.semaphore.Acquire(h.task)
		if granted {
			return h, nil
		}
		if err == nil {
			select {
			case <-pause.C:
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		a.tasks <- h.task
		return nil, err
	}
}

func (a *asynqRateLocks) Close() {
	close(a.closed)
	a.server.Shutdown()
	_ = a.client.Close()
}

// asynqRateHold is a task's permit.
type asynqRateHold struct {
	locks     *asynqRateLocks
	semaphore *rate.Semaphore
	task      context.Context
}

func (h *asynqRateHold) Release(context.Context) error {
	err := h.semaphore.Release(h.task)
	h.locks.tasks <- h.task
	if err != nil {
		return errors.Join(errors.New("asynq x/rate"), err)
	}
	return nil
}
