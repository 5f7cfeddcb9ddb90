package engine

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// promised is the longest time that a call may take beyond the end of its context or its wait.
const promised = locktest.Overstay

// newEngine makes a Locker that uses the client c. To the server, it looks like a Locker of a
// separate process.
func newEngine(t *testing.T, c locker.Client, opts ...locker.SingleOption) *locker.Engine {
	t.Helper()
	e, err := locker.New(c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = e.Close(ctx) // an error does not matter: after a fault, an undo may not have succeeded
	})
	return e
}

func acquire(t *testing.T, e *locker.Engine, r locker.Rule) *locker.Lease {
	t.Helper()
	lease, err := e.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t *testing.T, l *locker.Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// await calls cond every 5 ms until cond returns true, for 15 s at most. Then the test fails.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 15 s", what)
		}
	}
}

// awaitWaiters waits until the queue of key at the server has n waiters.
func awaitWaiters(t *testing.T, e *locker.Engine, key string, n int) {
	t.Helper()
	await(t, "waiters at the server", func() bool {
		info, err := e.Inspect(t.Context(), key)
		return err == nil && info.Waiters == n
	})
}

// newUser creates a Redis user with the given ACL rules in addition to the usual rules. It
// returns a client that logs in as this user.
func newUser(t *testing.T, s *redistest.Server, name string, rules ...any) *redis.Client {
	t.Helper()
	setUser(t, s, name, rules...)
	return s.Client(t, func(o *redis.Options) { o.Username, o.Password = name, "secret" })
}

func setUser(t *testing.T, s *redistest.Server, name string, rules ...any) {
	t.Helper()
	words := append([]any{"ACL", "SETUSER", name, "on", ">secret", "~*", "+@all"}, rules...)
	if err := s.Client(t).Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(err)
	}
}
