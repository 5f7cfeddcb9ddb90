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
		ContextTimeoutEnabled: true, // so a lone lock needs no change of goroutine
	})
	l, err := locker.NewSingle(client)
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Run(context.Background(), l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		fmt.Println("order 42 is mine, fence", lease.Fence())
		return nil // ctx ends, with a cause, the moment the lock is lost
	})
	if err != nil {
		log.Fatal(err) // errors.Is: locker.ErrBusy, ErrLost or ErrUnavailable
	}
}
