// Command quickstart holds one lock on a local Redis. It is the first program of the README.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/latchkit/latchkit/locker"
)

func main() {
	l, err := locker.Open("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(context.Background())

	rule := locker.Rule{Key: "order:42", Wait: 5 * time.Second}
	err = locker.Run(context.Background(), l, rule, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		fmt.Println("order 42 is mine, fence", lease.Fence())
		return nil // ctx ends, with a cause, if the lock is lost
	})
	if err != nil {
		log.Print(err) // test it with errors.Is: locker.ErrBusy, ErrLost or ErrUnavailable
	}
}
