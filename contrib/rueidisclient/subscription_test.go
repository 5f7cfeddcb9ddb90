package rueidisclient_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/latchkit/latchkit/contrib/rueidisclient"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
)

// oneAtATime returns a client that has one connection for subscriptions at a time.
func oneAtATime(t *testing.T, server *redistest.Server) *rueidisclient.Client {
	t.Helper()
	raw, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true, BlockingPoolSize: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	c, err := rueidisclient.New(raw)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hears awaits the next event, and returns it as text.
func hears(t *testing.T, s redisstore.PubSub) string {
	t.Helper()
	what, err := s.ReceiveTimeout(t.Context(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	switch what := what.(type) {
	case *redis.Subscription:
		return fmt.Sprintf("%s %s %d", what.Kind, what.Channel, what.Count)
	case *redis.Message:
		return what.Channel + ": " + what.Payload
	case *redis.Pong:
		return "pong"
	}
	t.Fatalf("%T is no event", what)
	return ""
}

func TestTheEventsOfASubscription(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := oneAtATime(t, server)
	s := c.OpenPubSub(t.Context())
	defer func() { _ = s.Close() }()
	for _, step := range []struct {
		does func() error
		says string
	}{
		{func() error { return s.Subscribe(t.Context(), "a") }, "subscribe a 1"},
		{func() error { return s.SSubscribe(t.Context(), "b") }, "ssubscribe b 1"},
		{func() error { return s.Ping(t.Context()) }, "pong"},
		{func() error { return server.Client(t).Publish(t.Context(), "a", "text").Err() }, "a: text"},
		{func() error { return server.Client(t).SPublish(t.Context(), "b", "text").Err() }, "b: text"},
		{func() error { return s.Unsubscribe(t.Context(), "a") }, "unsubscribe a 0"},
		{func() error { return s.SUnsubscribe(t.Context(), "b") }, "sunsubscribe b 0"},
	} {
		if err := step.does(); err != nil {
			t.Fatal(err)
		}
		if said := hears(t, s); said != step.says {
			t.Errorf("%q, want %q", said, step.says)
		}
	}
	if what, err := s.ReceiveTimeout(t.Context(), time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing to hear: %v %v", what, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if what, err := s.ReceiveTimeout(over, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has left: %v %v", what, err)
	}
}

// However a subscription ends, its reader gets an error, and the connection ends. Then the pool has
// room for the next connection.
func TestTheEndsOfASubscription(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	c := oneAtATime(t, server)
	for _, end := range []struct {
		name   string
		does   func(s redisstore.PubSub, cut context.CancelFunc)
		closed bool
	}{
		{"the server ends it", func(redisstore.PubSub, context.CancelFunc) {
			if n := client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Val(); n != 1 {
				t.Fatalf("%d subscriptions were ended", n)
			}
		}, false},
		{"Close", func(s redisstore.PubSub, _ context.CancelFunc) { _ = s.Close() }, true},
		{"the context ends", func(_ redisstore.PubSub, cut context.CancelFunc) { cut() }, true},
	} {
		ctx, cut := context.WithCancel(t.Context())
		s := c.OpenPubSub(ctx)
		if err := s.Subscribe(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if said := hears(t, s); said != "subscribe a 1" {
			t.Errorf("%s: %q", end.name, said)
		}
		end.does(s, cut)
		if what, err := s.ReceiveTimeout(t.Context(), 10*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) ||
			errors.Is(err, redis.ErrClosed) != end.closed {
			t.Errorf("%s: %v %v", end.name, what, err)
		}
		locktest.Eventually(t, "the server has no subscription", func() bool {
			return client.PubSubNumSub(t.Context(), "a").Val()["a"] == 0
		})
		cut()
	}
}
