package quorum_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// startNodes starts servers that no other test uses.
func startNodes(t *testing.T, n int) []*redistest.Server {
	t.Helper()
	servers := make([]*redistest.Server, n)
	for i := range servers {
		servers[i] = redistest.Start(t)
	}
	return servers
}

func clientsOf(t testing.TB, servers []*redistest.Server) []*redis.Client {
	t.Helper()
	var cs []*redis.Client
	for _, s := range servers {
		cs = append(cs, s.Client(t))
	}
	return cs
}

func clients(cs []*redis.Client) []locker.Client {
	var all []locker.Client
	for _, c := range cs {
		all = append(all, c)
	}
	return all
}

// enrolled starts servers that may vote at once.
func enrolled(t *testing.T, n int, opts ...locker.QuorumOption) []*redistest.Server {
	t.Helper()
	servers := startNodes(t, n)
	enroll(t, clients(clientsOf(t, servers)), opts...)
	return servers
}

// enroll enrolls servers. It waits for each server longer than a Locker with these options would
// wait, because the machine may be busy.
func enroll(t *testing.T, cs []locker.Client, opts ...locker.QuorumOption) {
	t.Helper()
	opts = append(slices.Clip(opts), locker.WithNodeTimeout(20*time.Second))
	if err := locker.EnrollRedlock(t.Context(), cs, opts...); err != nil {
		t.Fatal(err)
	}
}

// newRedlock makes a Locker. It is closed when the test ends, and an error of Close fails the test.
func newRedlock(t testing.TB, cs []locker.Client, opts ...locker.QuorumOption) *locker.Engine {
	t.Helper()
	l, err := locker.NewRedlock(cs, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// redlockOn makes a Locker with clients of its own, as if it were in a separate process.
func redlockOn(t testing.TB, servers []*redistest.Server, opts ...locker.QuorumOption) *locker.Engine {
	t.Helper()
	return newRedlock(t, clients(clientsOf(t, servers)), opts...)
}

// leftOn returns the keys of a server that should not exist when no process holds a lock or waits
// for one.
func leftOn(t testing.TB, s *redistest.Server) (left []string) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer c.Close()
	for _, key := range c.Keys(context.Background(), "*").Val() {
		if key != "latchkit:node" && !isCounter(key) && !isTombstone(key) {
			left = append(left, key)
		}
	}
	return left
}

func isCounter(key string) bool { return len(key) > 12 && key[:12] == "latchkit:f:{" }

func isTombstone(key string) bool { return len(key) > 12 && key[:12] == "latchkit:x:{" }

// waitUntilEmpty waits until the quorum has finished its background work, so that leftOn finds no
// key on the server s.
func waitUntilEmpty(t *testing.T, s *redistest.Server) {
	t.Helper()
	var left []string
	defer func() {
		if t.Failed() {
			t.Logf("left on %s: %q", s.Addr(), left)
		}
	}()
	eventually(t, "nothing is left", func() bool {
		left = leftOn(t, s)
		return len(left) == 0
	})
}
