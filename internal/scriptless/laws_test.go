package scriptless_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/scriptless"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/internal/store/storetest"
	"github.com/latchkit/latchkit/locker"
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

// deletion is the server's command that deletes a key if it has a value; "": there is none.
func deletion(t *testing.T, c *redis.Client) string {
	t.Helper()
	for _, name := range []string{"delex", "delifeq"} {
		infos, err := c.Do(t.Context(), "command", "info", name).Slice()
		if err != nil {
			t.Fatal(err)
		}
		if infos[0] != nil {
			return name
		}
	}
	return ""
}

// The laws hold for a user who must not use scripts, whether or not the user may use the command of
// newer servers that deletes a key if it has a value.
func TestScriptlessObeysTheLaws(t *testing.T) {
	for _, rights := range []string{"without the deletion", "with the deletion"} {
		t.Run(rights, func(t *testing.T) { testLaws(t, rights == "with the deletion") })
	}
}

func testLaws(t *testing.T, mayDelete bool) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	user, name := user, deletion(t, admin)
	if mayDelete && name != "" {
		user = append(slices.Clone(user), "+"+name)
	}
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
			lost := proxy.LoseReplies(1, func(r []byte) bool { // a step ends with EXEC, or is the deletion
				return chaos.Command("exec")(r) || mayDelete && name != "" && chaos.Command(name)(r)
			})
			t.Cleanup(func() {
				if lost.Hits() != 1 {
					t.Errorf("%d answers were lost, the law needs one", lost.Hits())
				}
			})
		}
		h.Another = func(t testing.TB) store.Store { return scriptless.New(server.Client(t, asUser)) }
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
		Another: func(testing.TB) store.Store { return scriptless.New(c) },
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

// A server that has a command for it needs one round trip for a release. Other servers need WATCH.
func TestAReleaseIsOneCommandWhereTheServerHasOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	s := scriptless.New(c)
	claim := store.Claim{Key: "a", Owner: "HOLDER", TTL: 10 * time.Second, FenceCount: 1, Metadata: "me & you"}
	watches := func() int {
		stats, err := c.InfoMap(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		if _, err := fmt.Sscanf(stats["Commandstats"]["cmdstat_watch"], "calls=%d", &n); err != nil {
			return 0
		}
		return n
	}
	for range 3 {
		if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Granted {
			t.Fatalf("%v, %v", g.State, err)
		}
		if g, err := s.Release(t.Context(), claim); err != nil || g.State != store.Released {
			t.Fatalf("%v, %v", g.State, err)
		}
	}
	want := 3
	if deletion(t, c) != "" {
		want = 0
	}
	if n := watches(); n != want {
		t.Errorf("%d of 3 releases used WATCH, want %d", n, want)
	}
	// A stranger's release deletes nothing.
	if _, err := s.Acquire(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	stranger := claim
	stranger.Owner = "STRANGER"
	if g, err := s.Release(t.Context(), stranger); err != nil || g.State != store.NotOurs {
		t.Errorf("a stranger's release: %v, %v", g.State, err)
	}
	if n := c.Exists(t.Context(), "a").Val(); n != 1 {
		t.Error("the lease is gone")
	}
}
