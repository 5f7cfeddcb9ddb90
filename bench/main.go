package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	playPart()

	var o order
	all := flag.Bool("all", false, "measure all rows")
	only := flag.String("row", "", "measure these rows, such as P3 or P2,P4")
	draw := flag.Bool("plot", false, "measure nothing: draw "+updateFile+" and "+latencyFile+" from "+resultsFile)
	out := flag.String("out", "", "write to this file instead of standard output")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each takes its turn; fewer than 5 do not tell a trend from noise")
	flag.DurationVar(&o.turn, "turn", 700*time.Millisecond, "how long a turn is")
	flag.IntVar(&o.aloneRounds, "alone-rounds", 15, "rounds of P1, which are half as long")
	flag.IntVar(&o.hoardRounds, "hoard-rounds", 3, "rounds of P6")
	flag.DurationVar(&o.hoardTTL, "hoard-ttl", 10*time.Second, "TTL of P6")
	flag.IntVar(&o.leases, "leases", 100_000, "leases of P6 that latchkit holds")
	flag.IntVar(&o.peerLeases, "peer-leases", 10_000, "leases of P6 that each peer holds")
	flag.DurationVar(&o.inheritTTL, "inherit-ttl", 2*time.Second, "TTL of P8")
	flag.Parse()

	if *draw {
		if err := writePlots(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, *all, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o order, all bool, rowNames, outFile string) error {
	if o.rounds < 1 || o.aloneRounds < 1 || o.hoardRounds < 1 || o.turn <= 0 || o.leases < 1 || o.peerLeases < 1 {
		return errors.New("-rounds, -turn and -leases must be positive")
	}
	chosen, err := choose(all, rowNames)
	if err != nil {
		return err
	}
	if outFile == "" {
		return measure(ctx, os.Stdout, o, chosen)
	}
	var text bytes.Buffer // the file is written at the end, so that an interrupted run does not change the old file
	measured := measure(ctx, &text, o, chosen)
	return errors.Join(measured, os.WriteFile(outFile, text.Bytes(), 0o644))
}

// choose returns all rows, or the rows in rowNames, which are separated by commas.
func choose(all bool, rowNames string) ([]row, error) {
	if all {
		return rows, nil
	}
	var chosen []row
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	for name := range strings.SplitSeq(rowNames, ",") {
		i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, strings.TrimSpace(name)) })
		if i < 0 {
			return nil, fmt.Errorf("pass -all, or -row with some of %s", strings.Join(names, ","))
		}
		chosen = append(chosen, rows[i])
	}
	return chosen, nil
}

// measure runs the rows, and writes the result of each row when the row has ended. If a row
// fails, or something happened that must not, measure reports it and continues with the other rows.
func measure(ctx context.Context, w io.Writer, o order, chosen []row) error {
	about, err := provenance(ctx, "go run -C bench . "+strings.Join(os.Args[1:], " "))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "# What a lock costs\n\n%s\n%s\n", reading, about)
	var failed error
	for _, r := range chosen {
		progress("%s: %s", r.name, r.title)
		t, err := r.run(ctx, o)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", r.name, err))
			continue
		}
		r.write(w, t)
	}
	return failed
}

// reading is the text that explains how to read the results.
const reading = `The command below has written this file. All contestants have the same server and, unless a row
states otherwise, the defaults of their clients. They take turns (A B C A B C …), each in processes
of its own. A figure is the median of the turns, with the range in brackets. Compare the ratios,
which are taken within one round: a bare time depends more on the machine than on the lock. The
floor is the least that a Redis lock must send: SET NX PX, and a script that deletes the key.

Client commands are those that clients send for each acquisition and its release. Server calls are
all commands that the server executes, also those of scripts. The bench tells the two apart by name,
because a script cannot run a script; a test compares the result with the traffic through a proxy.
Client CPU is getrusage of the client processes, and server CPU is INFO cpu, both for each
acquisition unless a row is in percent.`
