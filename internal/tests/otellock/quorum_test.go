package otellock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// The metric nodes.out counts a node of a real quorum from the node's death until it votes again.
func TestAKilledNodeIsCountedUntilItVotesAgain(t *testing.T) {
	var clients []locker.Client
	var nodes []*redistest.Server
	for range 3 {
		s := redistest.Start(t)
		nodes, clients = append(nodes, s), append(clients, s.Client(t))
	}
	// A node is out when it has not voted for longer than the longest lease.
	short := locker.WithOptions(locker.WithTTL(time.Second), locker.WithMaxTTL(time.Second))
	if err := locker.EnrollRedlock(t.Context(), clients, short); err != nil {
		t.Fatal(err)
	}
	tel := newTelemetry(t, sdktrace.AlwaysSample())
	l, err := locker.NewRedlock(clients, short, locker.WithObserver(tel.observer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	counts := func(want string) func() bool {
		return func() bool {
			locktest.Release(t, locktest.Acquire(t, l, locker.Rule{Key: "order:5"}))
			_, _ = l.Nodes(t.Context()) // detects that the node is down, as a page for operators does
			return strings.Contains(strings.Join(tel.measured(t), "\n"), want)
		}
	}
	locktest.Release(t, locktest.Acquire(t, l, locker.Rule{Key: "order:5"}))
	if all := strings.Join(tel.measured(t), "\n"); strings.Contains(all, "quorum.nodes.out: 1") {
		t.Errorf("a node is out before one was killed: %s", all)
	}
	nodes[1].Kill()
	await(t, "the dead node is counted", counts("quorum.nodes.out: 1"))
	if len(tel.logs.linesWith("node-out", "WARN")) != 1 {
		t.Errorf("logged is %q", tel.logs.linesWith("node"))
	}
	nodes[1].Restart()
	await(t, "the node votes again", counts("quorum.nodes.out: 0"))
	if len(tel.logs.linesWith("node-returned", "INFO")) != 1 {
		t.Errorf("logged is %q", tel.logs.linesWith("node"))
	}
}
