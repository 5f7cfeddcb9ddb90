package polling_test

import (
	"context"
	"log"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/polling"
)

func Example() {
	client := redislock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"})) // the client that the service already has
	l, err := polling.New(client, locker.WithBackoff(polling.Retries(func() redislock.RetryStrategy {
		return redislock.LimitRetry(redislock.ExponentialBackoff(16*time.Millisecond, time.Second), 20)
	})))
	if err != nil {
		log.Fatal(err)
	}
	ship := func(context.Context) error { return nil }
	_ = locker.Run(context.Background(), l, locker.Rule{Key: "order:42"}, ship)
}
