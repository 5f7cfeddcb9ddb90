package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
)

// P13 measures what the guard of an empty asynq task costs.
var guardedTasksRow = row{
	name:  "P13-asynq",
	title: "asynq: tasks that do nothing, guarded ÷ bare",
	about: `One server with 10 workers, in the process of the bench. The tasks of a turn are
enqueued before it begins, each with a key of its own. "× bare" is the time of a task, divided by
the time of a task without a guard in the same round. "by hand" is the least lock that a middleware
can take: SET NX PX, and a script that deletes the key. It has no waiting, no renewal, no fence and
no policy.`,
	run: runGuardedTasks,
}

// tasksOfATurn is the number of tasks in a turn.
const tasksOfATurn = 5000

const (
	bareTasks     = "bare"
	handTasks     = "by hand"
	onceDropTasks = "Once + Drop"
	templateTasks = "Template, WithWaking"
)

// taskKinds are the ways to guard a task, in the order of the table.
var taskKinds = []struct {
	name string
	opts func(c redis.UniversalClient) []asynqlock.Option
}{
	{bareTasks, nil},
	{handTasks, nil},
	{"Template", func(redis.UniversalClient) []asynqlock.Option {
		return []asynqlock.Option{asynqlock.On("job", asynqlock.Template("job:{payload.n}"))}
	}},
	{templateTasks, func(c redis.UniversalClient) []asynqlock.Option {
		return []asynqlock.Option{
			asynqlock.WithWaking(c), asynqlock.On("job", asynqlock.Template("job:{payload.n}")),
		}
	}},
	{onceDropTasks, func(c redis.UniversalClient) []asynqlock.Option {
		return []asynqlock.Option{
			asynqlock.WithWaking(c),
			asynqlock.On("job", asynqlock.Template("job:{payload.n}"), asynqlock.Once(time.Minute), asynqlock.Drop()),
		}
	}},
}

func runGuardedTasks(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	c := redis.NewClient(&redis.Options{Addr: srv.Addr(), PoolSize: 30, ContextTimeoutEnabled: true})
	defer c.Close()
	// for each kind of guard: the µs that one task took, in each round
	took := make(map[string][]float64)
	for round := range o.rounds {
		for _, kind := range taskKinds {
			progress("round %d of %d: %s", round+1, o.rounds, kind.name)
			var opts []asynqlock.Option
			if kind.opts != nil {
				opts = kind.opts(c)
			}
			var by asynq.MiddlewareFunc
			if kind.name == handTasks {
				by = lockByHand(c)
			}
			micros, err := workOff(ctx, c, by, opts)
			if err != nil {
				return tbl, fmt.Errorf("%s: %w", kind.name, err)
			}
			took[kind.name] = append(took[kind.name], micros)
		}
	}
	tbl = newTable("task", "µs", "× bare")
	for _, kind := range taskKinds {
		tbl.add(kind.name, medianAndRange("%.0f", took[kind.name]), medianAndRange("%.2f", ratios(took[kind.name], took[bareTasks])))
	}
	return tbl, nil
}

// lockByHand runs each task under the simplest possible lock. The key of the lock is the
// payload of the task.
func lockByHand(c *redis.Client) asynq.MiddlewareFunc {
	locks := floorLocks{client: c, ttl: 30 * time.Second}
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			held, err := locks.Lock(ctx, "job:"+string(t.Payload()))
			if err != nil {
				return err
			}
			return errors.Join(next.ProcessTask(ctx, t), held.Release(ctx))
		})
	}
}

// workOff runs all tasks under middleware, or under a Guard with opts. It returns the time that one
// task took, in µs.
func workOff(ctx context.Context, c *redis.Client, middleware asynq.MiddlewareFunc, opts []asynqlock.Option) (micros float64, err error) {
	if err := c.FlushDB(ctx).Err(); err != nil {
		return 0, err
	}
	client := asynq.NewClientFromRedisClient(c)
	for n := range tasksOfATurn {
		payload := `{"n":` + strconv.Itoa(n) + `}`
		if _, err := client.EnqueueContext(ctx, asynq.NewTask("job", []byte(payload))); err != nil {
			return 0, err
		}
	}
	var left atomic.Int64
	left.Store(tasksOfATurn)
	done := make(chan struct{})
	mux := asynq.NewServeMux()
	cfg := asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel}
	if middleware != nil {
		mux.Use(middleware)
	}
	if opts != nil {
		l, err := locker.New(c)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, l.Close(ctx)) }()
		g, err := asynqlock.New(l, opts...)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, g.Stop(ctx)) }()
		mux.Use(g.Middleware)
		cfg = g.Configure(cfg)
	}
	mux.HandleFunc("job", func(context.Context, *asynq.Task) error {
		if left.Add(-1) == 0 {
			close(done)
		}
		return nil
	})
	server := asynq.NewServerFromRedisClient(c, cfg)
	began := time.Now()
	if err := server.Start(mux); err != nil {
		return 0, err
	}
	defer server.Shutdown()
	select {
	case <-done:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return float64(time.Since(began).Microseconds()) / tasksOfATurn, nil
}
