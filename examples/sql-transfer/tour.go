package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/latchkit/latchkit/sqllock"
)

// tour acts as the clients of a bank, and prints their results.
func tour(ctx context.Context, out io.Writer) error {
	spans := tracetest.NewSpanRecorder() // a real service has an exporter
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))

	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	folder, err := os.MkdirTemp("", "sql-transfer")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	b, err := openBank(ctx, filepath.Join(folder, "bank.db"), client)
	if err != nil {
		return err
	}
	ending, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	defer b.close(ending)
	other, err := b.branch(client)
	if err != nil {
		return err
	}
	defer func() { _ = other.l.Close(ending) }()
	v := &visitor{ctx, b, out}

	v.say("Forty transfers at once, in both directions: no deadlock, and no lost update.")
	v.printResult("forty transfers", v.transferAtOnce(40))

	v.say("Do returns the function's own error unchanged, and the accounts stay as they were.")
	v.printResult("alice pays bob 9999", b.transfer(ctx, "alice", "bob", 999900))

	v.say("A holder is paused for longer than its leases, before its transaction. Another process pays meanwhile. Then the late holder continues, and is refused.")
	v.printResult("alice pays bob 10, late", b.transferLate(ctx, "alice", "bob", 1000, func() {
		server.Del("account:alice") // Redis also deletes the key when a lease expires
		server.Del("account:bob")
		v.printResult("alice pays bob 20 meanwhile", other.transfer(ctx, "alice", "bob", 2000))
	}))

	v.say("Redis restarts without its data, and its clock is an hour behind: its fences are smaller than those in the database.")
	server.FlushAll()
	server.SetTime(time.Now().Add(-time.Hour))
	v.printResult("bob pays alice 5", b.transfer(ctx, "bob", "alice", 500))
	if _, err := b.db.Repair(ctx, "account:alice", "account:bob"); err != nil {
		return err
	}
	v.printResult("bob pays alice 5, after Repair", b.transfer(ctx, "bob", "alice", 500))

	v.say("The spans of the transactions after the first forty.")
	v.trace(spans.Ended(), 40)
	return nil
}

// A visitor calls the bank and prints the results.
type visitor struct {
	ctx  context.Context
	bank *bank
	out  io.Writer
}

func (v *visitor) say(text string) { _, _ = fmt.Fprintf(v.out, "\n# %s\n", text) }

// transferAtOnce makes n transfers at the same time, some in each direction.
func (v *visitor) transferAtOnce(n int) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range errs {
		wg.Go(func() {
			if i%2 == 0 {
				errs[i] = v.bank.transfer(v.ctx, "alice", "bob", 300)
			} else {
				errs[i] = v.bank.transfer(v.ctx, "bob", "alice", 100)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// printResult prints the result of an action, a transfer that ended with err, and the balances.
// It does not print fences, because fences differ in each run.
func (v *visitor) printResult(action string, err error) {
	said := "committed"
	if e, ok := errors.AsType[*sqllock.Error](err); ok {
		said = e.Resource + ": " + e.Err.Error()
	} else if err != nil {
		said = err.Error()
	}
	alice, _ := balance(v.ctx, v.bank.pool, "alice")
	bob, _ := balance(v.ctx, v.bank.pool, "bob")
	_, _ = fmt.Fprintf(v.out, "%s: %s\n  alice has %.2f, bob has %.2f\n", action, said, float64(alice)/100, float64(bob)/100)
}

// trace prints the results of the transactions. It leaves out the first transactions; the
// parameter first is their number.
func (v *visitor) trace(spans []sdk.ReadOnlySpan, first int) {
	n := 0
	for _, s := range spans {
		if s.Name() != "transact account" {
			continue
		}
		if n++; n <= first {
			continue
		}
		for _, a := range s.Attributes() {
			if a.Key == "latchkit.lock.result" {
				_, _ = fmt.Fprintf(v.out, "%s: %s\n", s.Name(), a.Value.AsString())
			}
		}
	}
}
