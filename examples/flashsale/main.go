// Flashsale holds the same sale three times: without a lock, with the usual first lock (SETNX +
// DEL), and with latchkit. Nothing has to be installed. In the root of the repository:
//
//	go run ./examples/flashsale
//
// Read locks.go first, because it has the three guards of a purchase side by side, then the
// purchase in shop.go, and how stock.go refuses a buyer whose lock was lost.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if config := os.Getenv(childVariable); config != "" {
		runChild(config)
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals // nothing is left behind: locks expire, and child processes end
		fmt.Fprintln(os.Stderr, "\ninterrupted")
		os.Exit(130)
	}()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 1 if the sale failed, or what -assert wants, and 2 if a flag is wrong.
func run(args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "flashsale: %v; -h lists the flags\n", err)
		return 2
	}
	results, err := s.hold(stdout)
	if err == nil {
		s.explain(stdout, results)
	}
	if err == nil && s.assert {
		err = s.check(results)
	}
	if err != nil {
		fmt.Fprintln(stderr, "flashsale:", err)
		return 1
	}
	fmt.Fprintln(stdout, "\nOn a page, where you pause and kill the holder: go run ./examples/scenes")
	return 0
}

// explain explains the columns of the table, and says what the numbers show.
func (s *sale) explain(out io.Writer, results []result) {
	fmt.Fprintf(out, `
  oversold  orders beyond the stock of %d
  sold out  buyers who found no item left
  gave up   buyers who were refused %d times
  refused   answers 409 with Retry-After; the buyer comes back later
  p50, p99  waits from a buyer's first click to the last answer

`, s.items, tries)
	for _, r := range results {
		verdict := fmt.Sprintf("sold %d of %d", r.sold, s.items)
		if r.oversold > 0 {
			verdict = fmt.Sprintf("oversold %d: %s", r.oversold, r.way.why)
		}
		fmt.Fprintf(out, "%-11s  %s\n", r.way.name, verdict)
	}
}

// check implements -assert. What it checks holds in every run on every machine.
func (s *sale) check(results []result) error {
	switch none, ours := results[0], results[2]; {
	case ours.sold != s.items:
		return fmt.Errorf("%s sold %d items instead of %d", ours.way.name, ours.sold, s.items)
	case none.oversold == 0:
		return errors.New("no lock oversold nothing, so the sale did not need one; try more -buyers")
	}
	return nil
}

// A sale has the values of the flags.
type sale struct {
	items, buyers, procs int
	redis                string // "": a Redis in this process
	assert               bool
}

const usage = `Flashsale sells a few items to many buyers, three times: without a lock, with the usual
SETNX + DEL lock, and with latchkit. Nothing has to be installed.

Usage: go run ./examples/flashsale [flags]

`

// parse reads the flags. Its errors say how to correct the command line.
func parse(args []string, help io.Writer) (*sale, error) {
	s := &sale{}
	f := flag.NewFlagSet("flashsale", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the caller prints the error
	f.IntVar(&s.items, "items", 100, "how many items are in stock")
	f.IntVar(&s.buyers, "buyers", 300, "how many buyers want one")
	f.IntVar(&s.procs, "procs", 1, "how many processes sell")
	f.StringVar(&s.redis, "redis", "", "`URL` of a real Redis, such as redis://localhost:6379 (default: one in this process); only a counter stays in it, latchkit:f:…")
	f.BoolVar(&s.assert, "assert", false, "exit with 1 unless latchkit sold exactly the stock and no lock oversold")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(help, usage)
		f.SetOutput(help)
		f.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, err
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case s.items < 1 || s.buyers <= s.items || s.buyers > 100_000 || s.procs < 1 || s.procs > 64:
		return nil, errors.New("give 1 item or more, more -buyers than -items, up to 100000, and 1 to 64 -procs")
	}
	return s, nil
}
