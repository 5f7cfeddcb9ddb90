// Scenes shows on a page what a lock is for: in each scene the same thing happens three times side
// by side, without a lock, with SETNX + DEL, and with latchkit, and a visitor can pause and kill
// the holders. The parts are real: Gin, gRPC, asynq, SQL, and processes that die. Run the program
// from the root of the repository. Nothing has to be installed:
//
//	go run ./examples/scenes
//	go run ./examples/scenes -scene paused
//
// Each scene has a file of its own. Read scene_paused.go first, which shows what a fence is for,
// and locks.go, which has the guards of a purchase. A purchase goes from Gin (shop.go) through gRPC
// (stockroom.go) to SQL (store.go).
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
	exitFailed      = 1 // a scene could not be shown, or a condition of -assert failed
	exitUsage       = 2 // the values of the flags are wrong
	exitInterrupted = 130
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return exitUsage
	}
	err = p.show(ctx, stdout)
	switch {
	case ctx.Err() != nil && p.onPage():
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "scenes:", err)
		return exitFailed
	}
	return 0
}

// show shows the scenes on a page, or one scene or one trace in the terminal.
func (p *program) show(ctx context.Context, stdout io.Writer) error {
	v, err := p.prepare(ctx)
	if err != nil {
		return err
	}
	defer v.close()
	switch {
	case p.scene != "":
		return p.play(ctx, v, findScene(p.scene), stdout)
	case p.trace:
		return p.tracePurchase(ctx, v, stdout)
	default:
		return p.serve(ctx, v, stdout)
	}
}
