package cronlock_test

import (
	"context"
	"log"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/contrib/cronlock"
	"github.com/latchkit/latchkit/locker"
)

func makeReport(context.Context, time.Time) error { return nil }

func Example() {
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	c := cron.New()
	_, err = cronlock.Once(c, l, "0 3 * * *", "report", func(ctx context.Context) error {
		return makeReport(ctx, cronlock.Planned(ctx)) // ctx ends if the lock is lost
	}, cronlock.WithMakeUp(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	c.Start()
}
