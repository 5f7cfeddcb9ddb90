package locker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A Locker with a prefix lists its own keys, and shows them without the prefix. This is true even
// if the prefix contains characters of a pattern, such as "*".
func TestKeysOfAPrefix(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	all := locktest.Single(t, c)
	own := locktest.Single(t, c, locker.WithPrefix("shop[1]*:"))
	for l, keys := range map[*locker.Engine][]string{all: {"shop1x:order:9", "cache"}, own: {"order:2", "order:1", "basket:1"}} {
		for _, key := range keys {
			lease := locktest.Acquire(t, l, locker.Rule{Key: key})
			t.Cleanup(func() { locktest.Release(t, lease) })
		}
	}
	if err := c.Set(t.Context(), "order:3", "a value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	keys, err := own.Keys(t.Context(), "order:*")
	if want := []string{"order:1", "order:2"}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("keys %q, %v, want %q", keys, err, want)
	}
	keys, err = all.Keys(t.Context(), "*")
	if want := []string{"cache", "shop1x:order:9", "shop[1]*:basket:1", "shop[1]*:order:1", "shop[1]*:order:2"}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("keys %q, %v, want %q", keys, err, want)
	}
}

func TestKeysThatCannotBeListed(t *testing.T) {
	t.Parallel()
	l := locktest.Single(t, locktest.DeadServer(t))
	if _, err := l.Keys(t.Context(), "*"); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Keys on a dead server: %v", err)
	}
	if _, err := l.Queue(t.Context(), "order:1"); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Queue on a dead server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Keys(ctx, "*"); !errors.Is(err, context.Canceled) {
		t.Errorf("Keys after the end of its context: %v", err)
	}
	if _, err := l.Queue(t.Context(), ""); !errors.Is(err, locker.ErrInvalidKey) {
		t.Errorf("Queue of no key: %v", err)
	}
}

// traced is an Observer that gives each lease a traceparent.
type traced struct{ locker.Observer }

func (traced) Begin(ctx context.Context, _ locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, nil
}

func (traced) Traceparent(context.Context) string {
	return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
}

// On the server, a traceparent precedes the metadata of each waiter and permit. Users see the
// metadata without the traceparent.
func TestMetadataIsShownWithoutTheTraceparent(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	l, err := locker.NewSemaphore(c, 1, locker.WithObserver(traced{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	lease := locktest.Acquire(t, l, locker.Rule{Key: "order:1", Metadata: "holder"})
	waiter := locktest.Queues(t, l, locker.Rule{Key: "order:1", Metadata: "waiter"}, c)
	info, err := l.Inspect(t.Context(), "order:1")
	if err != nil || len(info.Permits) != 1 || info.Permits[0].Metadata != "holder" || info.Metadata != "holder" {
		t.Errorf("the permits: %+v, %v", info, err)
	}
	queue, err := l.Queue(t.Context(), "order:1")
	if err != nil || len(queue) != 1 || queue[0].Metadata != "waiter" {
		t.Errorf("the queue: %+v, %v", queue, err)
	}
	locktest.Release(t, lease)
	locktest.Release(t, waiter.Granted(10*time.Second))
}
