// Command kinds shows what latchkit offers in addition to the usual lock: a semaphore, stripes,
// a leader, an update without a lock, and a lock without scripts. It starts a Redis in this
// process.
//
//	go run ./examples/kinds
//	go run ./examples/kinds -redis redis://localhost:6379
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

func main() {
	url := flag.String("redis", "", "URL of a Redis; without one the program starts its own")
	flag.Parse()
	// hides the messages of package lead, because the transcript shows who leads
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(context.Background(), os.Stdout, *url); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, url string) error {
	if url == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		url = "redis://" + server.Addr()
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	options.ContextTimeoutEnabled = true // so a lone call runs on its caller's goroutine
	client := redis.NewClient(options)
	defer client.Close()
	observer, err := otellock.New() // spans go to the global TracerProvider
	if err != nil {
		return err
	}
	traced := locker.WithObserver(observer)
	for _, scene := range []func(context.Context, io.Writer, *redis.Client, locker.Option) error{atMostThree, fewLocks, oneLeader, noLock, noScripts} {
		if err := scene(ctx, out, client, traced); err != nil {
			return err
		}
	}
	return nil
}
