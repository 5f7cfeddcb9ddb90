package locker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// virtual runs a test of the Engine on the Store in memory, in a bubble where time passes only when everybody waits.
func virtual(t *testing.T, test func(t *testing.T, store *lockertest.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockertest.NewMemory()) })
}

func acquire(t *testing.T, l locker.Locker, rule locker.Rule) *locker.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), rule)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t *testing.T, lease *locker.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// wantErr checks that err is all of these, and an *Error with key.
func wantErr(t *testing.T, err error, key string, targets ...error) *locker.Error {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("got %v, want %v", err, target)
		}
	}
	e, ok := errtype.As[*locker.Error](err)
	if !ok {
		t.Fatalf("%v is no *locker.Error", err)
	}
	if e.Key != key {
		t.Fatalf("the error names key %q, want %q: %v", e.Key, key, err)
	}
	return e
}

func wantNot(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if errors.Is(err, target) {
			t.Fatalf("%v must not be %v", err, target)
		}
	}
}

// since fails unless about d has passed since start: on the virtual clock, up to the slack that jitter needs.
func since(t *testing.T, start time.Time, d, slack time.Duration) {
	t.Helper()
	if got := time.Since(start); got < d || got > d+slack {
		t.Fatalf("%v passed, want %v to %v", got, d, d+slack)
	}
}

func lost(t *testing.T, lease *locker.Lease, targets ...error) {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(48 * time.Hour): // in a bubble, whose clock the renewals drive on for ever
		t.Fatal("the lease is held still")
	}
	wantErr(t, context.Cause(lease.Context()), lease.Key(), targets...)
}
