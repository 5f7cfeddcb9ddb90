// Flashsale holds the same sale three times: without a lock, with the usual first lock (SETNX +
// DEL), and with latchkit. Then it counts the sold items. Run the program from the root of the
// repository. Nothing has to be installed:
//
//	go run ./examples/flashsale
//	go run ./examples/flashsale -http 127.0.0.1:7321
//
// With -http it shows six scenes on a page: see scene.go, and one file for each scene. Read
// locks.go first, because it has the three guards of a purchase side by side. A purchase goes from
// Gin (shop.go) through gRPC (stockroom.go) to SQL (store.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(start())
}

func start() int {
	if isBranch() {
		return branchMain(os.Stdin, os.Stdout, os.Stderr)
	}
	if isActor() {
		return actorMain(os.Stdin, os.Stdout, os.Stderr)
	}
	// The context makes the program clean up even when it is ended early, for example by Ctrl-C,
	// or by a closed terminal. SIGPIPE is no reason to end: a holder that is killed leaves broken
	// connections to the servers in this process. After "| head" the program prints to nobody, and
	// cleans up at its end.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// The exit codes other than 0.
const (
	exitFailed      = 1 // the sale could not be held, or a condition of -assert failed
	exitUsage       = 2 // the values of the flags are wrong
	exitInterrupted = 130
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return exitUsage
	}
	if s.scene != "" || s.http != "" {
		switch err := s.stage(ctx, stdout); {
		case ctx.Err() != nil && s.http != "":
			return 0
		case ctx.Err() != nil:
			fmt.Fprintln(stderr, "interrupted")
			return exitInterrupted
		case err != nil:
			fmt.Fprintln(stderr, "flashsale:", err)
			return exitFailed
		}
		return 0
	}
	results, request, err := s.run(ctx, stdout)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "flashsale:", err)
		return exitFailed
	}
	printFoot(stdout, s, results)
	if newBar(stdout).out != io.Discard { // a person at a terminal
		fmt.Fprintln(stdout, "\nOn a page, where you pause and kill the holder yourself: go run ./examples/flashsale -http 127.0.0.1:7321")
	}
	if s.trace {
		printTrace(stdout, request)
	}
	if s.assert {
		if err := check(s, results); err != nil {
			fmt.Fprintln(stderr, "flashsale: assertion failed:", err)
			return exitFailed
		}
		fmt.Fprintln(stdout, "Assertions hold.")
	}
	return 0
}

func (s *sale) run(ctx context.Context, stdout io.Writer) ([]result, *node, error) {
	v, err := s.prepare(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer v.close()
	printHead(stdout, s)
	return s.hold(ctx, v, newBar(stdout), func(r result) { printRow(stdout, r) })
}

// stage shows scenes, on a page or in the terminal.
func (s *sale) stage(ctx context.Context, stdout io.Writer) error {
	v, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	defer v.close()
	if s.http != "" {
		return s.serve(ctx, v, stdout)
	}
	return s.play(ctx, v, findScene(s.scene), stdout)
}
