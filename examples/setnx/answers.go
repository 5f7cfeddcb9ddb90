package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// answers plays the failures of the steps on a lock of latchkit.
func answers(ctx context.Context, out io.Writer, client *redis.Client, pass func(time.Duration)) error {
	l, err := locker.New(client)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	fmt.Fprintln(out, "latchkit")

	// a slow holder is renewed, and a caller is refused
	err = locker.Run(ctx, l, locker.Rule{Key: "answer:1"}, func(context.Context) error {
		_, err := l.Acquire(ctx, locker.Rule{Key: "answer:1", Wait: locker.NoWait})
		fmt.Fprintf(out, "   A works. B is refused: %v.\n", errors.Is(err, locker.ErrBusy))
		return nil
	})
	if err != nil {
		return err
	}

	// a holder whose key is gone is told, and its fence is smaller than the next holder's
	a, err := l.Acquire(ctx, locker.Rule{Key: "answer:2", TTL: 300 * time.Millisecond})
	if err != nil {
		return err
	}
	if err := client.Del(ctx, "answer:2").Err(); err != nil {
		return err
	}
	<-a.Context().Done()
	fmt.Fprintf(out, "   A's key is gone. The context of A ends, with the cause lost: %v.\n", errors.Is(context.Cause(a.Context()), locker.ErrLost))
	b, err := l.Acquire(ctx, locker.Rule{Key: "answer:2"})
	if err != nil {
		return err
	}
	stored := b.Fence() // B writes, and stores its fence beside the data
	fmt.Fprintf(out, "   A runs again and writes late. The data refuses its fence: %v.\n", a.Fence() < stored)
	return b.Release(ctx)
}
