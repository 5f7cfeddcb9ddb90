package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func sendWelcome(context.Context, *asynq.Task) error { return nil }
func makeReport(context.Context, *asynq.Task) error  { return nil }

// The rules allow one email for each user and hour, and one report of a tenant at a time.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := locker.Open("redis://localhost:6379") // with a client of its own: not rdb, which asynq may exhaust
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	g, err := asynqlock.New(l,
		asynqlock.WithWaking(rdb), // a task that was put off runs as soon as its key is free
		asynqlock.On("email:*", asynqlock.Template("user:{payload.user}"), asynqlock.Once(time.Hour), asynqlock.Drop()),
		asynqlock.On("report:*", asynqlock.Template("report:{payload.tenant}")),
	)
	if err != nil {
		log.Fatal(err)
	}
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc("email:", sendWelcome)
	mux.HandleFunc("report:", makeReport)
	server := asynq.NewServerFromRedisClient(rdb, g.Configure(asynq.Config{Concurrency: 10}))
	if err := g.Run(ctx, server, mux); err != nil {
		log.Fatal(err)
	}
}

// A middleware outside of the Guard gets the Problem of a task.
func ExampleProblem() {
	store := lockertest.NewMemory()
	store.Occupy("user:42", 0) // another task holds the lock
	l, err := store.NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	g, err := asynqlock.New(l, asynqlock.On("email:", asynqlock.Template("user:{payload.user_id}"), asynqlock.Drop()))
	if err != nil {
		log.Fatal(err)
	}
	guarded := g.Middleware(asynq.HandlerFunc(sendWelcome))
	err = guarded.ProcessTask(context.Background(), asynq.NewTask("email:welcome", []byte(`{"user_id":42}`)))
	if p, ok := errors.AsType[*asynqlock.Problem](err); ok {
		fmt.Println(p.Code, p.Verdict, errors.Is(err, locker.ErrBusy), errors.Is(err, asynq.RevokeTask))
	}
	// Output: lock-busy dropped true true
}

// With Unique, the queue has at most one task for each key that guards the runs.
func ExampleGuard_Client() {
	l, err := locker.Open("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	g, err := asynqlock.New(l, asynqlock.On("email:welcome", asynqlock.Template("user:{payload.user_id}"), asynqlock.Unique()))
	if err != nil {
		log.Fatal(err)
	}
	conn := asynq.RedisClientOpt{Addr: "localhost:6379"}
	client := g.Client(asynq.NewClient(conn))
	_, err = client.EnqueueContext(context.Background(), asynq.NewTask("email:welcome", []byte(`{"user_id":42}`)), asynq.MaxRetry(5))
	if errors.Is(err, asynq.ErrDuplicateTask) {
		log.Print("it is on its way")
	}
}
