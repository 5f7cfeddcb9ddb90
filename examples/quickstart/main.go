// Command quickstart holds one lock on a local Redis. It is the first program of the README.
package main

import (
	"context"
	"errors"
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
	defer l.Close(context.Background()) // without it, a key that is held stays locked for 30 s

	rule := locker.Rule{Key: "order:42", Wait: 2 * time.Second}
	err = locker.Run(context.Background(), l, rule, func(ctx context.Context) error {
		fmt.Println("order 42 is mine")
		return ship(ctx) // ctx ends, with a cause, if the lock is lost
	})
	switch {
	case errors.Is(err, locker.ErrBusy):
		log.Print("another process ships it, for longer than 2 s: nothing was done")
	case err != nil:
		log.Print(err) // ErrUnavailable: nothing was done; ErrLost: the work may be half done
	}
}

func ship(context.Context) error { return nil }
