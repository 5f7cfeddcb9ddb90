// Command quickstart holds one lock on a local Redis. It is the first program of the README.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

func main() {
	client := redis.NewClient(&redis.Options{
		Addr:                  "localhost:6379",
		ContextTimeoutEnabled: true, // so a lone call runs on its caller's goroutine
	})
	l, err := locker.NewSingle(client)
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Run(context.Background(), l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		fmt.Println("order 42 is mine, fence", lease.Fence())
		return nil // if the lock is lost, ctx ends at once, with a cause
	})
	if err != nil {
		log.Fatal(err) // test it with errors.Is: locker.ErrBusy, ErrLost or ErrUnavailable
	}
}
