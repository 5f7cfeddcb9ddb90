package main

import (
	"bytes"
	"os"
	"testing"
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
func output(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}
