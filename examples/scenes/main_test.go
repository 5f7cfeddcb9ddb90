package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain can also run as a child process with actors: the program starts its own binary again,
// and in a test this is the test binary.
func TestMain(m *testing.M) {
	if isActor() {
		os.Exit(actorMain(os.Stdin, os.Stdout, os.Stderr))
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // without this, each child would sleep for 1 s at its end under -race
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

func TestFlagsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		want string // a text that the error message must contain
	}{
		{"-scene sleep", "there are the scenes paused, oversell"},
		{"-assert", "needs a -scene"},
		{"-colour", "-h lists the flags"},
		{"-seed many", "-h lists the flags"},
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
	if code != 0 || stderr != "" || !strings.Contains(stdout, "-scene") || !strings.Contains(stdout, "go run ./examples/scenes") {
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
func TestInterruptedSceneLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	code, _, stderr := output(ctx, t, "-scene", "oversell")
	if code != exitInterrupted || !strings.Contains(stderr, "interrupted") {
		t.Errorf("code %d, stderr %q; want %d", code, stderr, exitInterrupted)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
