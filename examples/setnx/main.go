// Command setnx plays the steps by which locks on Redis usually grow, from GET and SET to a token.
// It shows how each step fails, and how latchkit answers. It starts a Redis in this process.
//
//	go run ./examples/setnx
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func main() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	if err := run(context.Background(), os.Stdout, client, server.FastForward); err != nil {
		log.Fatal(err)
	}
}

// run plays all steps. The function pass lets time pass on the server.
func run(ctx context.Context, out io.Writer, client *redis.Client, pass func(time.Duration)) error {
	for i, s := range steps {
		s := stage{ctx: ctx, redis: client, pass: pass, key: fmt.Sprint("job:", i+1), step: s}
		fmt.Fprintf(out, "%d. %s\n   %s\n", i+1, s.name, s.play(&s))
		if s.err != nil {
			return fmt.Errorf("step %d: %w", i+1, s.err)
		}
	}
	return answers(ctx, out, client, pass)
}
