// Package miniredis runs the Locker on miniredis, a server that the example flash sale starts
// inside its own process. No test of safety uses miniredis. These tests only show that the Locker
// works with the commands that miniredis supports.
package miniredis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func setup(t *testing.T, opts ...locker.SingleOption) (*miniredis.Miniredis, *locker.Engine) {
	t.Helper()
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	l, err := locker.New(client, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return server, l
}

func acquire(t *testing.T, l locker.Locker, rule locker.Rule) *locker.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), rule)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
}

func TestOneLifeOfALock(t *testing.T) {
	server, l := setup(t, locker.WithMetadata(func(context.Context) string { return "me:1" }))
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Minute})
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	want(t, err, locker.ErrBusy)
	if i, err := l.Inspect(t.Context(), "a"); err != nil || !i.Held || i.Fence != lease.Fence() || i.Metadata != "me:1" || i.Left <= 0 {
		t.Fatalf("%+v %v", i, err)
	}
	if err := lease.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if ttl := server.TTL("a"); ttl < 59*time.Minute {
		t.Fatalf("TTL %v", ttl)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := acquire(t, l, locker.Rule{Key: "a"})
	if next.Fence() <= lease.Fence() {
		t.Fatalf("fence %d after %d", next.Fence(), lease.Fence())
	}
	if err := l.Revoke(t.Context(), "a", next.Fence(), "drill"); err != nil {
		t.Fatal(err)
	}
	want(t, next.Release(t.Context()), locker.ErrRevoked)
}

func TestALeaseRunsOutWhenTheServersClockMovesOn(t *testing.T) {
	server, l := setup(t)
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Minute})
	server.FastForward(2 * time.Minute)
	next := acquire(t, l, locker.Rule{Key: "a"})
	want(t, lease.Release(t.Context()), locker.ErrLost)
	if err := next.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestOnceAndAtLeast(t *testing.T) {
	server, l := setup(t)
	rule := locker.Rule{Key: "a", OnceFor: time.Hour}
	work := func(context.Context) error { return nil }
	if err := locker.Run(t.Context(), l, rule, work); err != nil {
		t.Fatal(err)
	}
	want(t, locker.Run(t.Context(), l, rule, work), locker.ErrDone)

	lease := acquire(t, l, locker.Rule{Key: "b", KeepFor: time.Minute})
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "b", Wait: locker.NoWait})
	want(t, err, locker.ErrBusy)
	server.FastForward(time.Minute)
	acquire(t, l, locker.Rule{Key: "b", Wait: locker.NoWait})
}

func TestDataThatIsNoLockStays(t *testing.T) {
	server, l := setup(t)
	if _, err := server.Push("list", "1"); err != nil {
		t.Fatal(err)
	}
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "list"})
	want(t, err, locker.ErrInvalidKey)
	if values, err := server.List("list"); err != nil || len(values) != 1 {
		t.Fatal(values, err)
	}
}

func TestWhatTheServerDoesNotKnowIsNoWarning(t *testing.T) {
	var rec lockertest.Recorder
	_, l := setup(t, locker.WithObserver(&rec))
	if err := acquire(t, l, locker.Rule{Key: "a"}).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Close waits until the Locker has ended its examination of the server
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := rec.Warnings(); len(w) != 0 {
		t.Fatalf("%+v", w)
	}
}
