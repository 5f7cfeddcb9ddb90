// Command grpc-inventory is a gRPC service whose .proto file has the lock rules of its methods. The
// program starts two servers of the service, calls them, and prints the results.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func main() {
	url := flag.String("redis", "", "the `URL` of a Redis, such as redis://localhost:6379 (default: one inside this program)")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *url); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run plays all scenes in order.
func run(ctx context.Context, out io.Writer, url string) error {
	if url == "" {
		own := miniredis.NewMiniRedis()
		if err := own.Start(); err != nil {
			return err
		}
		defer own.Close()
		url = "redis://" + own.Addr()
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()

	goods := newGoods(20, "screws", "bolts", "nuts", "nails")
	east, err := start(client, goods)
	if err != nil {
		return err
	}
	defer east.stop()
	west, err := start(client, goods)
	if err != nil {
		return err
	}
	defer west.stop()
	s := scenes{out: out, east: east, west: west, goods: goods}
	for _, scene := range []func(context.Context) error{s.sceneBusy, s.sceneCrowd, s.sceneBasket, s.sceneCaller, s.sceneShutdown} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}
