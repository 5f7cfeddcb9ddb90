package gocronlock_test

import (
	"context"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/contrib/gocronlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
)

// Each minute, a job runs once, in one of several processes.
func Example() {
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	each, err := gocronlock.PerTick(l, gocronlock.Round(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(each))
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(func() { log.Print("once a minute") }), gocron.WithName("report"))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
}

// Jobs run only in the process that leads.
func ExampleNewElector() {
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	leader, err := lead.New(l, locker.Rule{Key: "scheduler"})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		err := leader.Run(context.Background(), func(ctx context.Context) error { <-ctx.Done(); return nil })
		log.Print(err)
	}()
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(gocronlock.NewElector(leader)))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
}
