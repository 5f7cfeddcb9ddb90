package locker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// quorumCan is what a quorum can do. It keeps no order: nodes can disagree about who waits, so none of them hands a key over.
var quorumCan = func() lockertest.Capabilities {
	can := lockertest.All
	can.Queue, can.Notify = false, false
	return can
}()

func TestRedlockObeysTheLaws(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers))); err != nil {
		t.Fatal(err)
	}
	t.Run("on three servers", func(t *testing.T) {
		lockertest.Run(t, func(t *testing.T) lockertest.Harness { return quorumHarness(t, servers) })
	})
}

func quorumHarness(t *testing.T, servers []*redistest.Server) lockertest.Harness {
	direct := clientsOf(t, servers)
	var proxies []*chaos.Proxy
	var through []*redis.Client
	for _, s := range servers {
		p := chaos.NewProxy(t, s.Addr())
		proxies = append(proxies, p)
		through = append(through, s.Client(t, func(o *redis.Options) { o.Addr = p.Addr() }))
	}
	var mu sync.Mutex
	connections := make(map[locker.Store][]*redis.Client)
	store := newQuorumStore(t, through)
	return lockertest.Harness{
		Store: store,
		Can:   quorumCan,
		LoseReply: func(t testing.TB, op locker.Op, key string) {
			for i, p := range proxies {
				loadScripts(t, through[i])
				lost := p.LoseReplies(1, quorumCall(op, key))
				t.Cleanup(func() {
					if lost.Hits() != 1 {
						t.Errorf("%d answers of node %d were lost, the law needs one", lost.Hits(), i)
					}
				})
			}
		},
		Another: func(t testing.TB) locker.Store {
			cs := clientsOf(t, servers)
			s := newQuorumStore(t, cs)
			mu.Lock()
			defer mu.Unlock()
			connections[s] = cs
			return s
		},
		Occupy: func(t testing.TB, key string, ttl time.Duration) {
			for _, c := range direct {
				if err := c.Set(t.Context(), key, "QkZ:redislock/other==", ttl).Err(); err != nil {
					t.Fatal(err)
				}
			}
		},
		Spoil: func(t testing.TB, key string) func() bool {
			for _, c := range direct {
				if err := c.HSet(t.Context(), key, "field", "value").Err(); err != nil {
					t.Fatal(err)
				}
			}
			return func() bool {
				for _, c := range direct {
					if c.HGet(context.Background(), key, "field").Val() != "value" {
						return false
					}
				}
				return true
			}
		},
	}
}

func newQuorumStore(t testing.TB, cs []*redis.Client) locker.Store {
	t.Helper()
	s, err := locker.QuorumStore(clients(cs))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := locker.Settle(ctx, s); err != nil {
			t.Errorf("settle: %v", err)
		}
	})
	return s
}

// quorumCall matches the EVALSHA of one step of a quorum on one key.
func quorumCall(op locker.Op, key string) chaos.Match {
	name := map[locker.Op]string{locker.OpAcquire: "quorum_acquire", locker.OpRenew: "renew", locker.OpRelease: "quorum_release"}[op]
	sha := locker.ScriptSHA(name)
	return func(request []byte) bool {
		return strings.Contains(string(request), sha) && strings.Contains(string(request), key)
	}
}
