package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

func main() {
	rounds := flag.Int("rounds", 11, "how often each takes its turn; at least 5 tell a trend from noise")
	turn := flag.Duration("turn", 300*time.Millisecond, "how long a turn is")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *rounds, *turn); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, turn time.Duration) (err error) {
	if rounds < 1 || turn <= 0 {
		return fmt.Errorf("-rounds %d and -turn %v must both be more than nothing", rounds, turn)
	}
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer func() {
		if closing := server.Close(); closing != nil {
			err = errors.Join(err, closing)
		}
	}()

	field, err := contestants(func() *redis.Client { return redis.NewClient(&redis.Options{Addr: server.Addr()}) })
	if err != nil {
		return err
	}
	results, err := compete(ctx, field, rounds, turn)
	if err != nil {
		return err
	}
	fmt.Println(about(ctx, server.Addr(), rounds, turn))
	fmt.Println()
	fmt.Print(table(results))
	return nil
}
