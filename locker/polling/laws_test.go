package polling

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/internal/store/storetest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// This Store makes only the calls of redislock, so its harness declares none of the capabilities.
// The test's log lists the laws that are left out.
func TestPollingObeysTheLaws(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		server := redistest.Shared(t)
		direct := server.Client(t)
		proxy := chaos.NewProxy(t, server.Addr())
		client, losses := locktest.Through(t, server, proxy, sendOnce), new(storetest.Losses)
		client.AddHook(losses)
		clients := make(map[store.Store]*redis.Client)
		return storetest.Harness{
			Store:  newStore(redislock.New(client)),
			Losses: losses,
			LoseReply: func(t testing.TB, op locker.Op, key string) {
				loadRedislock(t, direct)
				lost := proxy.LoseReplies(1, redislockCall(op, key))
				t.Cleanup(func() {
					if lost.Hits() != 1 {
						t.Errorf("%d answers were lost, the law needs one", lost.Hits())
					}
				})
			},
			Left: func(t testing.TB, key string) time.Duration { return direct.PTTL(t.Context(), key).Val() },
			Another: func(t testing.TB) store.Store {
				c := redis.NewClient(&redis.Options{Addr: server.Addr()})
				t.Cleanup(func() { c.Close() }) // an error does not matter, because Kill may have closed the client already
				s := newStore(redislock.New(c))
				clients[s] = c
				return s
			},
			Kill: func(t testing.TB, s store.Store) {
				if err := clients[s].Close(); err != nil {
					t.Fatal(err)
				}
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

// sendOnce makes go-redis send each call of redislock once. By default, go-redis would repeat a
// call whose answer was lost, before the test can notice the loss.
func sendOnce(o *redis.Options) { o.MaxRetries = -1 }

// redislockCall matches a call of one of redislock's scripts for a key. It recognises the script
// by the number of arguments.
func redislockCall(op locker.Op, key string) chaos.Match {
	words := map[locker.Op]string{
		locker.OpAcquire: "*7\r\n", // EVALSHA sha 1 key value offset ttl
		locker.OpRenew:   "*6\r\n", // EVALSHA sha 1 key value ttl
		locker.OpRelease: "*5\r\n", // EVALSHA sha 1 key value
	}[op]
	return func(request []byte) bool {
		text := strings.ToLower(string(request))
		return strings.HasPrefix(text, words) && strings.Contains(text, "evalsha") && strings.Contains(string(request), key)
	}
}

// loadRedislock loads redislock's scripts into the server, so that no call gets NOSCRIPT.
func loadRedislock(t testing.TB, c *redis.Client) {
	t.Helper()
	lock, err := redislock.Obtain(t.Context(), c, "redislock:warm:"+t.Name(), time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Refresh(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}
