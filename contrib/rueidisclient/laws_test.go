package rueidisclient_test

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/latchkit/latchkit/contrib/rueidisclient"
	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
	"github.com/latchkit/latchkit/locker/store/storetest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestSingleObeysTheLaws(t *testing.T) {
	t.Parallel()
	obeysTheLaws(t, redisstore.New)
}

func TestReadWriteObeysTheLaws(t *testing.T) {
	t.Parallel()
	obeysTheLaws(t, redisstore.NewReadWrite)
}

func TestSemaphoreObeysTheLaws(t *testing.T) {
	t.Parallel()
	obeysTheLaws(t, redisstore.NewSemaphore)
}

type maker = func(c redisstore.Client, s redisstore.Settings) (store.Store, error)

// obeysTheLaws runs the laws with Stores that reach the server through rueidis.
func obeysTheLaws(t *testing.T, open maker) {
	t.Helper()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		server := redistest.Shared(t)
		direct := server.Client(t)
		proxy := chaos.NewProxy(t, server.Addr())
		under := storeOn(t, open, connect(t, proxy.Addr()))
		can := storetest.All
		can.Readers = store.CapabilitiesOf(under).Downgrade != nil
		if can.Permits = store.CapabilitiesOf(under).Permits; can.Permits {
			can.Metadata, can.Next = false, false
		}
		return storetest.Harness{
			Store:     under,
			Can:       can,
			LoseReply: func(t testing.TB, _ locker.Op, key string) { loseReply(t, proxy, open, direct, key) },
			Another: func(t testing.TB) locker.Store {
				return storeOn(t, open, connect(t, server.Addr()))
			},
			Queued: func(t testing.TB, key string) int {
				return int(direct.ZCard(t.Context(), redisstore.QueueKey(key)).Val())
			},
			Occupy: func(t testing.TB, key string, ttl time.Duration) {
				if err := direct.Set(t.Context(), key, "QkZ:redislock/other==", ttl).Err(); err != nil {
					t.Fatal(err)
				}
			},
			Spoil: func(t testing.TB, key string) func() bool {
				if err := direct.HSet(t.Context(), key, "field", "value").Err(); err != nil {
					t.Fatal(err)
				}
				return func() bool { return direct.HGet(context.Background(), key, "field").Val() == "value" }
			},
		}
	})
}

// loseReply makes the proxy lose the reply to the next script about a key. After loseReply, the
// laws call a script for this key at once.
func loseReply(t testing.TB, proxy *chaos.Proxy, open maker, warm redisstore.Client, key string) {
	t.Helper()
	s, err := open(warm, redisstore.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	c := store.Claim{Key: "warm:" + key, Owner: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", TTL: time.Minute}
	acts := []func() error{ // after these calls the server knows the scripts, so it does not reply NOSCRIPT
		func() error { _, err := s.Acquire(t.Context(), c); return err },
		func() error { _, err := s.Renew(t.Context(), []store.Claim{c}); return err },
		func() error { _, err := s.Release(t.Context(), c); return err },
	}
	if downgrade := store.CapabilitiesOf(s).Downgrade; downgrade != nil {
		acts = append(acts, func() error { _, err := downgrade(t.Context(), c); return err })
	}
	for _, act := range acts {
		if err := act(); err != nil {
			t.Fatal(err)
		}
	}
	lost := proxy.LoseReplies(1, func(request []byte) bool {
		text := string(request)
		return strings.Contains(text, key) && strings.Contains(strings.ToLower(text), "evalsha")
	})
	t.Cleanup(func() {
		if lost.Hits() != 1 {
			t.Errorf("%d answers were lost, the law needs one", lost.Hits())
		}
	})
}

func connect(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{addr},
		DisableCache:      true,
		ForceSingleClient: true,
		DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func storeOn(t testing.TB, open maker, c rueidis.Client) store.Store {
	t.Helper()
	client, err := rueidisclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(client, redisstore.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
