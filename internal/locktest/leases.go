package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Acquire returns a lease, and fails the test if the acquire fails. A Locker gives a server up
// after a second. On a busy machine the server may need longer, so Acquire asks again for a minute.
func Acquire(t *testing.T, l locker.Locker, rule locker.Rule) *locker.Lease {
	t.Helper()
	began := time.Now()
	lease, err := l.Acquire(t.Context(), rule)
	for errors.Is(err, locker.ErrUnavailable) && time.Since(began) < time.Minute {
		lease, err = l.Acquire(t.Context(), rule)
	}
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// Release releases a lease, and fails the test if the release fails.
func Release(t *testing.T, lease *locker.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Lost waits for the end of the lease, and checks that the cause of the end matches each of the
// targets.
func Lost(t *testing.T, lease *locker.Lease, targets ...error) {
	t.Helper()
	// In a bubble of synctest, the clock starts in the year 2000, and 48 h pass quickly. A bubble
	// in which leases are renewed never ends by itself.
	limit := time.Minute
	if time.Now().Year() < 2020 {
		limit = 48 * time.Hour
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(limit):
		t.Fatalf("the lease is still held after %v", limit)
	}
	WantErr(t, context.Cause(lease.Context()), lease.Key(), targets...)
}

// WantErr checks that err matches each of the targets, and is an *Error with the given key. It
// returns this *Error.
func WantErr(t *testing.T, err error, key string, targets ...error) *locker.Error {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("got %v, want %v", err, target)
		}
	}
	e, ok := errors.AsType[*locker.Error](err)
	if !ok {
		t.Fatalf("%v is no *locker.Error", err)
	}
	if e.Key != key {
		t.Fatalf("the error names key %q, want %q: %v", e.Key, key, err)
	}
	return e
}

// WantNot checks that err matches none of the targets.
func WantNot(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if errors.Is(err, target) {
			t.Fatalf("%v must not be %v", err, target)
		}
	}
}
