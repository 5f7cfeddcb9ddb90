// Asynq-reports is a small back office. Two workers make reports and send invoices, and locks keep
// their tasks apart. Run the program from the root of the repository.
// Nothing has to be installed:
//
//	go run ./examples/asynq-reports
//
// Read work.go first, because it has all the rules in one place. transcript.txt is the output of
// the program.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis that may be written to (default: one inside this program)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "asynq-reports:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, addr string) error {
	if addr == "" {
		// miniredis is enough for a demonstration. It cannot prove that a lock is safe, because
		// it expires keys only when the program sets its clock.
		local, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer local.Close()
		addr = local.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis answers at %s: %w", addr, err)
	}
	o, err := open(client)
	if err != nil {
		return err
	}
	defer o.close()
	for _, scene := range []func(context.Context, io.Writer) error{o.orderReports, o.orderImports, o.orderInvoices} {
		if err := scene(ctx, out); err != nil {
			return err
		}
	}
	return nil
}
