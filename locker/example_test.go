package locker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func ship(context.Context) error { return nil }

func Example() {
	l, err := locker.Open("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(context.Background())
	rule := locker.Rule{Key: "order:42", TTL: 10 * time.Second, Wait: 2 * time.Second}
	err = locker.Run(context.Background(), l, rule, ship)
	switch {
	case errors.Is(err, locker.ErrBusy):
		var e *locker.Error
		errors.As(err, &e)
		log.Printf("another process ships it, look again in %v", e.RetryAfter)
	case errors.Is(err, locker.ErrLost):
		log.Print("the lock was lost while shipping: what was done may have been overtaken")
	case errors.Is(err, locker.ErrUnavailable):
		log.Print("Redis is unavailable: nothing was shipped")
	case err != nil:
		log.Print(err)
	}
}

func ExampleRule() {
	// One successful run a day, on the machine that starts first; a failed run may be repeated.
	_ = locker.Rule{Key: "report:2026-11-21", Wait: locker.NoWait, OnceFor: 24 * time.Hour}
	// A cron job on machines whose clocks differ by a second or two: the key stays taken for 5 s
	// even if the job is quick.
	_ = locker.Rule{Key: "cron:cleanup", Wait: locker.NoWait, KeepFor: 5 * time.Second}
	// A lease of 10 s that no process renews: tryLock(wait, lease).
	_ = locker.Rule{Key: "export", Wait: time.Second, TTL: 10 * time.Second, EndAfter: 10 * time.Second}
}

func ExampleNew_options() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	l, err := locker.New(client,
		locker.WithMaxWaiters(100),                            // for each key; then ErrTooManyWaiters, at once
		locker.WithAdaptiveTTL(2*time.Second, 30*time.Second), // after a crash, the next waiter waits for 2 s on a healthy network
	)
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Close(context.Background())
}

// A Locker on Sentinel, with leases that count only when a replica has them.
func ExampleNew_sentinel() {
	sentinels := []string{"localhost:26379", "localhost:26380", "localhost:26381"}
	l, err := locker.New(
		redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: sentinels}),
		locker.WithReplicaAck(1, 500*time.Millisecond),
	)
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Close(context.Background())
}

// WithoutQueue is for the time in which another library still polls for the same keys.
func ExampleWithoutQueue() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	l, err := locker.New(client, locker.WithoutQueue())
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Close(context.Background())
}

// Instances that poll starve beside others that queue. So all instances of a service change from
// polling to the queue at the same time.
func ExampleWithoutQueue_cutover() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	cutover := time.Date(2026, time.December, 1, 4, 0, 0, 0, time.UTC)
	polls, err := locker.New(client, locker.WithoutQueue())
	if err != nil {
		log.Fatal(err)
	}
	queues, err := locker.New(client)
	if err != nil {
		log.Fatal(err)
	}
	l := polls
	if time.Now().After(cutover) { // for each job again: all instances change in the same second
		l = queues
	}
	_ = locker.Run(context.Background(), l, locker.Rule{Key: "report"}, func(context.Context) error { return nil })
	_ = polls.Close(context.Background())
	_ = queues.Close(context.Background())
}

// Many callers may read an article at the same time; one caller at a time may change it.
func ExampleNewReadWrite() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	ctx := context.Background()
	show := func(context.Context) error { return nil }

	l, err := locker.NewReadWrite(client)
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Run(ctx, l, locker.Rule{Key: "article:7", Mode: locker.Shared}, show)
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Close(ctx)
}

func ExampleEngine_Acquire() {
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()

	lease, err := l.Acquire(context.Background(), locker.Rule{Key: "order:42"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Release(context.Background()) }()

	_, err = l.Acquire(context.Background(), locker.Rule{Key: "order:42", Wait: locker.NoWait})
	fmt.Println("busy:", errors.Is(err, locker.ErrBusy))
	// Output: busy: true
}

// How to test your own handling of a loss, without Redis and without sleeping.
func Example_testingALoss() {
	export := func(ctx context.Context) error { // the code under test
		<-ctx.Done()
		return context.Cause(ctx)
	}
	test := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := lockertest.NewMemory()
			l := lockertest.NewLocker(t, store)
			err := locker.Run(t.Context(), l, locker.Rule{Key: "export"}, func(ctx context.Context) error {
				store.Steal("export") // as if this process had been paused past its lease
				return export(ctx)
			})
			if !errors.Is(err, locker.ErrLost) {
				t.Fatal(err)
			}
		})
	}
	_ = test
}

// The servers are independent, and not replicas of each other. A program of its own enrolled them
// once, when they were installed: see EnrollRedlock.
func ExampleNewRedlock() {
	nodes := []locker.Client{
		redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379"}),
		redis.NewClient(&redis.Options{Addr: "10.0.0.2:6379"}),
		redis.NewClient(&redis.Options{Addr: "10.0.0.3:6379"}),
	}
	l, err := locker.NewRedlock(nodes)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(context.Background())
}

// At most 5 exports run at the same time in all processes together, and at most 2 of one tenant. A
// large export counts as two.
func ExampleNewSemaphore() {
	l, err := locker.NewSemaphore(redis.NewClient(&redis.Options{Addr: "localhost:6379"}), 5)
	if err != nil {
		log.Fatal(err)
	}
	rules := []locker.Rule{
		{Key: "exports", Weight: 2},
		{Key: "exports:tenant-7", Limit: 2},
	}
	err = locker.RunAll(context.Background(), l, rules, ship)
	if errors.Is(err, locker.ErrBusy) {
		log.Print("too many exports run")
	}
}
