package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/latchkit/latchkit/internal/redistest"
)

// TestMain is also the program, and a child process with one shop: the program starts its own
// binary again, and in a test this is the test binary.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" || os.Getenv("FLASHSALE_MAIN") != "" {
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
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "go run ./examples/scenes") {
		t.Errorf("the last line does not say where the scenes are: %s", last)
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("a terminal of 80 columns breaks the line %q", line)
		}
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

// When the lock is lost during the payment, nothing is sold, and the buyer may come back.
func TestLostLockSellsNothing(t *testing.T) {
	t.Parallel()
	slow := 0
	for paymentTime(slow) < lockTTL {
		slow++
	}
	client := redistest.Start(t).Client(t)
	read := make(chan struct{}, 10)
	stock := &stock{leftOver: 1}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stock.ServeHTTP(w, r)
		read <- struct{}{}
	}))
	defer server.Close()
	url, stop, err := openShop(shopConfig{len(ways) - 1, "redis://" + client.Options().Addr, stockURL(server.URL)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	status := make(chan int)
	go func() {
		got, _, _, err := send(context.Background(), http.MethodPost, fmt.Sprintf("%s/skus/last/orders?buyer=%d", url, slow))
		if err != nil {
			t.Error(err)
			close(status)
			return
		}
		status <- got
	}()
	<-read
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if got := <-status; got != http.StatusServiceUnavailable {
		t.Errorf("the reply is %d, want %d", got, http.StatusServiceUnavailable)
	}
	if stock.orders != 0 {
		t.Errorf("%d orders, want none", stock.orders)
	}
}

func TestBuyers(t *testing.T) {
	t.Parallel()
	busy := func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusConflict)
	}
	for _, test := range []struct {
		name    string
		reply   func(w http.ResponseWriter, try int)
		status  int
		refused int
		failed  bool
	}{
		{"who is served has it", func(w http.ResponseWriter, _ int) { w.WriteHeader(http.StatusCreated) }, http.StatusCreated, 0, false},
		{"who is refused comes back", func(w http.ResponseWriter, try int) {
			if try < 3 {
				busy(w)
			} else {
				w.WriteHeader(http.StatusGone)
			}
		}, http.StatusGone, 2, false},
		{"who is refused too often gives up", func(w http.ResponseWriter, _ int) { busy(w) }, http.StatusConflict, tries, false},
		{"whose shop has lost its lock comes back", func(w http.ResponseWriter, _ int) { w.WriteHeader(http.StatusServiceUnavailable) }, http.StatusServiceUnavailable, tries, false},
		{"a server error is a failure", func(w http.ResponseWriter, _ int) { w.WriteHeader(http.StatusInternalServerError) }, http.StatusInternalServerError, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			try := 0 // needs no mutex, because one buyer makes one request at a time
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				try++
				test.reply(w, try)
			}))
			defer server.Close()
			a := crowd(1, []string{server.URL}, "1")[0]
			if a.status != test.status || a.refused != test.refused || (a.err != nil) != test.failed {
				t.Errorf("it ended with %+v; want %d, refused %d", a, test.status, test.refused)
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
		{"-procs 0", "1 to 64 -procs"},
		{"-items 0", "1 item or more"},
		{"-buyers 10 -items 10", "more -buyers than -items"},
		{"-colour", "-h lists the flags"},
		{"-items many", "-h lists the flags"},
		{"redis://localhost", "unexpected argument"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := output(strings.Fields(test.args)...)
			if code != 2 || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("code %d, stdout %q, stderr %q; want 2, nothing and %q", code, stdout, stderr, test.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := output("-h")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "-assert") || !strings.Contains(stdout, "go run ./examples/flashsale") {
		t.Errorf("code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
}

func TestRedisThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ url, want string }{
		{"redis://someone:secret@127.0.0.1:1", "no Redis answers at 127.0.0.1:1"},
		{"localhost:6379", "looks like redis://"},
	} {
		code, stdout, stderr := output("-redis", test.url)
		if code != 1 || !strings.Contains(stderr, test.want) || strings.Contains(stdout+stderr, "secret") {
			t.Errorf("code %d, stdout %q, stderr %q; want 1 and %q", code, stdout, stderr, test.want)
		}
	}
}

// Whoever ends the program, at any time, ends the processes of its shops, too.
func TestInterruptedSaleLeavesNoProcess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		end    func(group int) error
		code   int
		stderr string
	}{
		{"Ctrl-C", func(group int) error { return syscall.Kill(-group, syscall.SIGINT) }, 130, "\ninterrupted\n"},
		{"kill", func(group int) error { return syscall.Kill(group, syscall.SIGTERM) }, 130, "\ninterrupted\n"},
		{"kill -9", func(group int) error { return syscall.Kill(group, syscall.SIGKILL) }, -1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-procs", "2")
			cmd.Env = append(os.Environ(), "FLASHSALE_MAIN=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stderr, stdout := filepath.Join(t.TempDir(), "stderr"), io.Reader(nil)
			file, err := os.Create(stderr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			cmd.Stderr = file
			if stdout, err = cmd.StdoutPipe(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			group := cmd.Process.Pid
			defer func() { _ = syscall.Kill(-group, syscall.SIGKILL) }()
			var seen strings.Builder
			for buf := make([]byte, 1024); !strings.Contains(seen.String(), "SETNX"); { // a row begins
				n, err := stdout.Read(buf)
				if err != nil {
					t.Fatalf("after %q: %v", seen.String(), err)
				}
				seen.Write(buf[:n])
			}
			if err := test.end(group); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its code is below
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for deadline := time.Now().Add(20 * time.Second); runs(t, group); time.Sleep(50 * time.Millisecond) { //nolint:forbidigo // between looks, until the deadline
				if time.Now().After(deadline) {
					t.Fatal("after 20 s, a process of a shop still runs")
				}
			}
			if text, err := os.ReadFile(stderr); err != nil || string(text) != test.stderr {
				t.Errorf("stderr %q, %v; want %q", text, err, test.stderr)
			}
		})
	}
}

// runs reports whether a process of the group runs. Those that have ended may wait as zombies.
func runs(t *testing.T, group int) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-A", "-o", "pgid=,stat=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if pgid, state, _ := strings.Cut(strings.TrimSpace(line), " "); pgid == strconv.Itoa(group) && !strings.HasPrefix(strings.TrimSpace(state), "Z") {
			return true
		}
	}
	return false
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

func TestVerdictSaysWhatTheNumbersShow(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	(&sale{items: 100}).explain(&out, []result{
		{way: ways[0], sold: 300, oversold: 200}, {way: ways[1], sold: 100}, {way: ways[2], sold: 101, oversold: 1},
	})
	for _, want := range []string{
		"no lock      oversold 200: buyers read", "SETNX + DEL  sold 100 of 100\n", "latchkit     oversold 1: this is a defect",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}
