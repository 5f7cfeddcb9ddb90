package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
)

// TestMain is also a child process with one shop: the program starts its own binary again, and in a
// test this is the test binary.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		main()
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // without this, each child would sleep for 1 s at its end under -race
	os.Exit(m.Run())
}

// output runs the program with args.
func output(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestLatchkitSellsExactlyTheStockAndNoLockOversells(t *testing.T) {
	t.Parallel()
	code, out, errs := output("-items", "10", "-buyers", "60", "-assert")
	if code != 0 || errs != "" {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	if !strings.Contains(out, "latchkit     sold 10 of 10\n") || !strings.Contains(out, "no lock      oversold ") {
		t.Errorf("it does not say what happened:\n%s", out)
	}
}

// On a Redis of the user, the sale leaves one counter of fences.
func TestShopsInOtherProcessesSellTheSameStock(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	code, out, errs := output("-items", "10", "-buyers", "60", "-procs", "3", "-assert", "-redis", "redis://"+client.Options().Addr)
	if code != 0 || errs != "" {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
	var counters int
	for _, key := range client.Keys(t.Context(), "*").Val() {
		if strings.HasPrefix(key, "latchkit:f:") {
			counters++
		} else if client.TTL(t.Context(), key).Val() == -1 { // inboxes of waiters expire
			t.Errorf("the key %s is left for ever", key)
		}
	}
	if counters != 1 {
		t.Errorf("%d counters of fences are left, want 1", counters)
	}
}

// The shop has one item. The first buyer's payment takes longer than the TTL, and the second buyer
// clicks during this payment. The guards of a purchase differ in what the second buyer is told.
func TestSlowPayment(t *testing.T) {
	t.Parallel()
	slow, fast := 0, 0
	for paymentTime(slow) < lockTTL {
		slow++
	}
	for paymentTime(fast) > lockTTL {
		fast++
	}
	for i, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			redis, err := startRedis()
			if err != nil {
				t.Fatal(err)
			}
			read := make(chan struct{}, 10) // the stock was read, so a payment begins
			stock := &stock{leftOver: 1}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				stock.ServeHTTP(w, r)
				read <- struct{}{}
			}))
			defer server.Close()
			url, stop, err := openShop(shopConfig{i, redis, stockURL(server.URL)})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := stop(); err != nil {
					t.Error(err)
				}
			}()
			first := make(chan answer)
			go func() { first <- buyer(slow, url, "last") }()
			<-read
			second := buyer(fast, url, "last")
			if a := <-first; a.status != http.StatusCreated {
				t.Errorf("the slow buyer: %+v; want to get it", a)
			}
			want := map[string]int{"no lock": http.StatusCreated, "SETNX + DEL": http.StatusCreated, "latchkit": http.StatusGone}[way.name]
			if second.status != want {
				t.Errorf("the second buyer: %+v; want %d", second, want)
			}
		})
	}
}

// A buyer whose lock was lost during the payment is refused by the stock, and has bought nothing.
func TestStockRefusesAHolderWhoIsTooLate(t *testing.T) {
	t.Parallel()
	stock := &stock{leftOver: 5}
	server := httptest.NewServer(stock)
	defer server.Close()
	at, ctx := stockURL(server.URL), t.Context()
	for _, step := range []struct {
		fence    uint64
		sell     bool
		leftOver int // what is left according to the caller, and then in the stock
		want     error
	}{
		{fence: 0, sell: true, leftOver: 4}, // without a lock nobody is refused
		{fence: 0, leftOver: 4},
		{fence: 7, leftOver: 4},
		{fence: 8, leftOver: 4}, // the next holder reads
		{fence: 7, sell: true, leftOver: 4, want: errStale},
		{fence: 7, leftOver: 4, want: errStale},
		{fence: 8, sell: true, leftOver: 3},
		{fence: 0, sell: true, leftOver: 3, want: errStale},
	} {
		var err error
		if step.sell {
			left := step.leftOver
			if step.want != nil {
				left = 99
			}
			err = at.sell(ctx, left, step.fence)
		} else {
			_, err = at.read(ctx, step.fence)
		}
		if !errors.Is(err, step.want) || stock.leftOver != step.leftOver {
			t.Errorf("%+v: error %v, %d left", step, err, stock.leftOver)
		}
	}
	if stock.orders != 2 {
		t.Errorf("%d orders, want 2", stock.orders)
	}
}

func TestAssert(t *testing.T) {
	t.Parallel()
	s := &sale{items: 10, buyers: 60}
	results := func(none, ours int) []result {
		return []result{{sold: none, oversold: max(0, none-10)}, {}, {way: ways[2], sold: ours}}
	}
	if err := s.check(results(60, 10)); err != nil {
		t.Errorf("a right result: %v", err)
	}
	for want, wrong := range map[string][]result{
		"latchkit sold 11 items instead of 10": results(60, 11),
		"latchkit sold 9 items instead of 10":  results(60, 9),
		"no lock oversold nothing":             results(10, 10),
	} {
		if err := s.check(wrong); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
