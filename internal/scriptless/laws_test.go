package scriptless_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/scriptless"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store/storetest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// can has the abilities of the Store. The Store has no fences, and no ability that needs fences,
// because fences need scripts.
var can = storetest.Capabilities{Tombstone: true, OnceFor: true, KeepFor: true, Metadata: true, Left: true}

// user is an ACL user with the rights that NewScriptless documents, and no others.
var user = []any{
	"acl", "setuser", "locks", "reset", "on", ">secret", "~*", "+set", "+get", "+pttl", "+pexpire", "+exists", "+del",
	"+watch", "+unwatch", "+multi", "+exec", "+hello", "+ping", "+client",
}

func asUser(o *redis.Options) { o.Username, o.Password = "locks", "secret" }

// The laws hold for a user who must not use scripts.
func TestScriptlessObeysTheLaws(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	if err := admin.Do(t.Context(), user...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := server.Client(t, asUser).Eval(t.Context(), "return 1", nil).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Fatalf("the user may use scripts: %v", err)
	}
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		losses := new(storetest.Losses)
		proxy := chaos.NewProxy(t, server.Addr())
		c := server.Client(t, asUser, func(o *redis.Options) { o.Addr = proxy.Addr() })
		c.AddHook(losses)
		h := harness(t, c, admin)
		h.Losses = losses
		h.LoseReply = func(t testing.TB, _ locker.Op, _ string) {
			lost := proxy.LoseReplies(1, chaos.Command("exec")) // every step ends with EXEC
			t.Cleanup(func() {
				if lost.Hits() != 1 {
					t.Errorf("%d answers were lost, the law needs one", lost.Hits())
				}
			})
		}
		h.Another = func(t testing.TB) locker.Store { return scriptless.New(server.Client(t, asUser)) }
		return h
	})
}

func TestScriptlessOnSentinelObeysTheLaws(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t)
	storetest.Run(t, func(t *testing.T) storetest.Harness { c := set.Client(t); return harness(t, c, c) })
}

func TestScriptlessOnAClusterObeysTheLaws(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	storetest.Run(t, func(t *testing.T) storetest.Harness { c := cluster.Client(t); return harness(t, c, c) })
}

// harness returns the harness for Stores on c. The client admin reads the server's data.
func harness(t *testing.T, c, admin redis.UniversalClient) storetest.Harness {
	return storetest.Harness{
		Store:   scriptless.New(c),
		Can:     can,
		Left:    func(t testing.TB, key string) time.Duration { return admin.PTTL(t.Context(), key).Val() },
		Another: func(testing.TB) locker.Store { return scriptless.New(c) },
		Occupy: func(t testing.TB, key string, ttl time.Duration) {
			if err := admin.Set(t.Context(), key, "QkZ:redislock/other==", ttl).Err(); err != nil {
				t.Fatal(err)
			}
		},
		Spoil: func(t testing.TB, key string) func() bool {
			if err := admin.HSet(t.Context(), key, "field", "value").Err(); err != nil {
				t.Fatal(err)
			}
			return func() bool { return admin.HGet(context.Background(), key, "field").Val() == "value" }
		},
	}
}
