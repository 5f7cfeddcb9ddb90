package otelredislock_test

import (
	"log"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	otelredislock "github.com/latchkit/latchkit/otel/redislock"
)

// A service that uses bsm/redislock gets the same spans without changing its calls.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	traced, err := otelredislock.New(redislock.New(client))
	if err != nil {
		log.Fatal(err)
	}
	_ = traced.Obtain
}
