package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// New servers vote at once after the program has run.
func TestEnrolledServersGrantLocksAtOnce(t *testing.T) {
	t.Parallel()
	var clients []locker.Client
	args := []string{"run", "."}
	for range 3 {
		s := redistest.Start(t)
		clients, args = append(clients, s.Client(t)), append(args, "redis://"+s.Addr())
	}
	l, err := locker.NewRedlock(clients)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(t.Context()) })
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all servers vote") {
		t.Fatalf("%v\n%s", err, out)
	}
	lease, err := l.Acquire(t.Context(), locker.Rule{Key: "order:42", Wait: locker.NoWait})
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
