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

// tour plays the clients of a bank and writes what they get.
func tour(ctx context.Context, out io.Writer) error {
	spans := tracetest.NewSpanRecorder() // any service's SDK; a real one exports
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))

	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
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
	nothing := func() {}

	v.say("Forty transfers at once, in both directions: nobody waits for each other, nothing is lost.")
	var wg sync.WaitGroup
	errs := make([]error, 40)
	for i := range errs {
		wg.Go(func() {
			if i%2 == 0 {
				errs[i] = b.transfer(ctx, "alice", "bob", 300, nothing)
			} else {
				errs[i] = b.transfer(ctx, "bob", "alice", 100, nothing)
			}
		})
	}
	wg.Wait()
	v.got("forty transfers", errors.Join(errs...))

	v.say("The function's own error comes back as it is, and nothing is changed.")
	v.got("alice pays bob 9999", b.transfer(ctx, "alice", "bob", 999900, nothing))

	v.say("A holder is paused for longer than its leases last. Another process pays; then it goes on, and does not know.")
	v.got("alice pays bob 10, late", b.transfer(ctx, "alice", "bob", 1000, sync.OnceFunc(func() {
		server.Del("account:alice") // what Redis does when the time is up
		server.Del("account:bob")
		v.got("alice pays bob 20 meanwhile", other.transfer(ctx, "alice", "bob", 2000, nothing))
	}), sqllock.WithStrategy(sqllock.VerifyLast)))

	v.say("Redis comes back without its data and with a clock that is an hour behind: its fences are too small.")
	server.FlushAll()
	server.SetTime(time.Now().Add(-time.Hour))
	v.got("bob pays alice 5", b.transfer(ctx, "bob", "alice", 500, nothing))
	for _, key := range []string{"account:alice", "account:bob"} {
		if err := sqllock.Repair(ctx, b.l, b.db, key); err != nil {
			return err
		}
	}
	v.got("bob pays alice 5, after Repair", b.transfer(ctx, "bob", "alice", 500, nothing))

	v.say("What the transactions left in the trace, after the first forty.")
	n := 0
	for _, s := range spans.Ended() {
		if s.Name() != "transact account" {
			continue
		}
		if n++; n > len(errs) {
			v.trace(s)
		}
	}
	return nil
}

// A visitor calls the bank and shows what it gets.
type visitor struct {
	ctx  context.Context
	bank *bank
	out  io.Writer
}

func (v *visitor) say(text string) { _, _ = fmt.Fprintf(v.out, "\n# %s\n", text) }

// got prints how a transfer ended, without fences, which differ from one run to the next, and what
// the accounts have.
func (v *visitor) got(what string, err error) {
	said := "committed"
	if e, ok := errors.AsType[*sqllock.Error](err); ok {
		said = e.Resource + ": " + e.Err.Error()
	} else if err != nil {
		said = err.Error()
	}
	alice, _ := balance(v.ctx, v.bank.db, "alice")
	bob, _ := balance(v.ctx, v.bank.db, "bob")
	_, _ = fmt.Fprintf(v.out, "%s: %s\n  alice has %.2f, bob has %.2f\n", what, said, float64(alice)/100, float64(bob)/100)
}

// trace prints the result of a span.
func (v *visitor) trace(s sdk.ReadOnlySpan) {
	for _, a := range s.Attributes() {
		if a.Key == "latchkit.lock.result" {
			_, _ = fmt.Fprintf(v.out, "%s: %s\n", s.Name(), a.Value.AsString())
		}
	}
}
