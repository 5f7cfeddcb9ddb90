package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// TestMain can also run as a child process with one shop: with -procs, the program starts its
// own binary again, and in a test this is the test binary.
func TestMain(m *testing.M) {
	if isBranch() {
		os.Exit(branchMain(os.Stdin, os.Stdout, os.Stderr))
	}
	if isActor() {
		os.Exit(actorMain(os.Stdin, os.Stdout, os.Stderr))
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // without this, each branch would sleep for 1 s at its end under -race
	os.Exit(m.Run())
}

// output runs the program with args.
func output(ctx context.Context, t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// await calls cond again and again until it returns true.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); _ = sleep(t.Context(), 5*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 10 s still not: %s", what)
		}
	}
}

// hold runs the small sale s. It returns one result for each guard of a purchase (no lock,
// SETNX + DEL, latchkit), by the guard's name.
func hold(t *testing.T, s *sale) (map[string]result, *node) {
	t.Helper()
	v, err := s.prepare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	results, request, err := s.hold(t.Context(), v, newBar(io.Discard), func(result) {})
	if err != nil {
		t.Fatal(err)
	}
	byWay := map[string]result{}
	for _, r := range results {
		byWay[r.way] = r
		if len(r.failed) > 0 {
			t.Errorf("%s: %d requests failed, the first with: %v", r.way, len(r.failed), r.failed[0])
		}
		if sum := r.sold + r.soldOut + r.gaveUp; sum != s.buyers {
			t.Errorf("%s: %d sold + %d sold out + %d gave up = %d, want all %d buyers", r.way, r.sold, r.soldOut, r.gaveUp, sum, s.buyers)
		}
	}
	return byWay, request
}

func TestLatchkitSellsExactlyTheStockAndNoLockOversells(t *testing.T) {
	t.Parallel()
	s := &sale{items: 10, buyers: 60, seed: 1, procs: 1}
	results, _ := hold(t, s)
	if r := results["latchkit"]; r.sold != 10 || r.oversold != 0 {
		t.Errorf("latchkit sold %d, oversold %d; want 10 and 0", r.sold, r.oversold)
	}
	if r := results["no lock"]; r.oversold == 0 {
		t.Errorf("no lock sold %d of 10; want more", r.sold)
	}
}

func TestShopsInOtherProcessesSellTheSameStock(t *testing.T) {
	t.Parallel()
	local, err := startRedis()
	if err != nil {
		t.Fatal(err)
	}
	defer local.close()
	s := &sale{items: 10, buyers: 60, seed: 1, procs: 3, redis: local.url(), trace: true}
	results, request := hold(t, s)
	if r := results["latchkit"]; r.sold != 10 {
		t.Errorf("latchkit sold %d; want 10", r.sold)
	}
	if r := results["no lock"]; r.oversold == 0 {
		t.Errorf("no lock sold %d of 10; want more", r.sold)
	}
	if request == nil {
		t.Error("no trace came back from the other processes")
	}
}

// In this test the shop has one item. The first buyer's payment takes longer than the TTL, and
// the second buyer clicks during this payment. The results differ between the three guards of a
// purchase.
func TestSlowPayment(t *testing.T) {
	t.Parallel()
	const seed = 1
	slow, fast := 0, 0
	for paymentTime(seed, slow) < lockTTL {
		slow++
	}
	for paymentTime(seed, fast) > lockTTL {
		fast++
	}
	for i, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			v, err := (&sale{}).prepare(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer v.close()
			shop, err := openShop(t.Context(), shopConfig{Way: i, Redis: v.redis, Stockroom: v.stockroom.addr, Seed: seed, Trace: true})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := shop.close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}()
			if err := v.stockroom.store.fill(t.Context(), "last", 1); err != nil {
				t.Fatal(err)
			}
			c := &crowd{shops: []string{shop.url}, sku: "last"}
			first := make(chan purchase)
			go func() { first <- c.buyer(t.Context(), slow) }()
			await(t, "the slow payment is under way", func() bool {
				shop.tracer.mu.Lock()
				defer shop.tracer.mu.Unlock()
				return slices.ContainsFunc(shop.tracer.spans, func(s sdk.ReadOnlySpan) bool { return s.Name() == "read stock" })
			})
			second := c.buyer(t.Context(), fast)
			if e := <-first; e.outcome != gotIt {
				t.Errorf("the slow buyer: %+v; want to get it", e)
			}
			want := map[string]outcome{"no lock": gotIt, "SETNX + DEL": gotIt, "latchkit": soldOut}[way.name]
			if second.outcome != want {
				t.Errorf("the second buyer: %+v; want %v", second, want)
			}
		})
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		want string // a text that the error message must contain
	}{
		{"-procs 3", "add -redis redis://localhost:6379"},
		{"-procs 0", "1 to 64"},
		{"-items 0", "at least 1 item"},
		{"-buyers 0", "1 to 100000"},
		{"-assert -buyers 10 -items 10", "more buyers (10) than items (10)"},
		{"-colour", "-h lists the flags"},
		{"-items many", "-h lists the flags"},
		{"redis://localhost", "unexpected argument"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := output(t.Context(), t, strings.Fields(test.args)...)
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("code %d, stdout %q, stderr %q; want %d, nothing and %q", code, stdout, stderr, exitUsage, test.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := output(t.Context(), t, "-h")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "-assert") || !strings.Contains(stdout, "go run ./examples/flashsale") {
		t.Errorf("code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
}

func TestServersThatDoNotAnswerAreNamed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ flag, value, want string }{
		{"-redis", "redis://127.0.0.1:1", "no Redis answers at 127.0.0.1:1"},
		{"-redis", "localhost:6379", "looks like redis://"},
		{"-dsn", "/no/such/folder/shop.db", "open /no/such/folder/shop.db"},
		{"-dsn", "postgres://nobody:secret@127.0.0.1:1/shop", "open the PostgreSQL"},
	} {
		t.Run(test.value, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := output(t.Context(), t, test.flag, test.value)
			if code != exitFailed || stdout != "" || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "secret") {
				t.Errorf("code %d, stdout %q, stderr %q; want %d, nothing and %q", code, stdout, stderr, exitFailed, test.want)
			}
		})
	}
}

// This test is not parallel, because it calls Setenv.
func TestInterruptedSaleLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	code, _, stderr := output(ctx, t, "-seed", "1")
	if code != exitInterrupted || !strings.Contains(stderr, "interrupted") {
		t.Errorf("code %d, stderr %q; want %d", code, stderr, exitInterrupted)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v to end", took)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAssert(t *testing.T) {
	t.Parallel()
	s := &sale{items: 10, buyers: 60}
	right := []result{{way: "no lock", sold: 60, oversold: 50}, {way: "SETNX + DEL"}, {way: "latchkit", sold: 10}}
	if err := check(s, right); err != nil {
		t.Errorf("a right result: %v", err)
	}
	for _, test := range []struct {
		name, want string
		wrong      []result
	}{
		{"latchkit oversold", "latchkit sold 11 items instead of 10", []result{right[0], right[1], {way: "latchkit", sold: 11}}},
		{"latchkit undersold", "latchkit sold 9 items instead of 10", []result{right[0], right[1], {way: "latchkit", sold: 9}}},
		{"no crowd", "did not need a lock", []result{{way: "no lock", sold: 10}, right[1], right[2]}},
	} {
		if err := check(s, test.wrong); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", test.name, err, test.want)
		}
	}
}
