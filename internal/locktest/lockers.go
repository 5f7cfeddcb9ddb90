package locktest

import (
	"context"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// Single makes a Locker on one server, and closes it with the test.
func Single(t testing.TB, c locker.Client, opts ...locker.SingleOption) *locker.Engine {
	t.Helper()
	l, err := locker.New(c, opts...)
	return closed(t, l, err)
}

// ReadWrite makes a Locker with readers on one server, and closes it with the test.
func ReadWrite(t testing.TB, c locker.Client, opts ...locker.SingleOption) *locker.Engine {
	t.Helper()
	l, err := locker.NewReadWrite(c, opts...)
	return closed(t, l, err)
}

// Semaphore makes a Locker of n units, and closes it with the test.
func Semaphore(t testing.TB, c locker.Client, n int, opts ...locker.SingleOption) *locker.Engine {
	l, err := locker.NewSemaphore(c, n, opts...)
	return closed(t, l, err)
}

func closed(t testing.TB, l *locker.Engine, err error) *locker.Engine {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// SingleStore makes the Store that locker.New uses.
func SingleStore(c locker.Client) store.Store {
	s, _ := redisstore.New(c, redisstore.Settings{}) // only wrong options cause an error
	return s
}

// SemaphoreStore makes the Store that locker.NewSemaphore uses.
func SemaphoreStore(c locker.Client) store.Store {
	s, _ := redisstore.NewSemaphore(c, redisstore.Settings{})
	return s
}

// ReadWriteStore makes the Store that locker.NewReadWrite uses.
func ReadWriteStore(c locker.Client) store.Store {
	s, _ := redisstore.NewReadWrite(c, redisstore.Settings{})
	return s
}

// Reentrant returns a reentrant Locker over l.
func Reentrant(t testing.TB, l locker.Locker) locker.Locker {
	t.Helper()
	r, err := locker.NewReentrant(l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// NewEngine makes a Locker on a Store, such as one that a test has wrapped.
func NewEngine(s store.Store, opts ...locker.Option) (*locker.Engine, error) {
	e, err := store.NewEngine(s, opts)
	if err != nil {
		return nil, err
	}
	return e.(*locker.Engine), nil
}
