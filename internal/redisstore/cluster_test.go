package redisstore_test

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// A Locker of any kind that has the client of one node of a cluster warns of it. With the client of
// the cluster, it does not, and examines every master.
func TestANodeOfAClusterIsWarnedOf(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	bounded := func(o *redis.Options) { o.ContextTimeoutEnabled = true }
	bounds := func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = true }
	kinds := []func(locker.Client) store.Store{locktest.SingleStore, locktest.ReadWriteStore, locktest.SemaphoreStore}
	check := func(c locker.Client, codes ...string) {
		t.Helper()
		for i, open := range kinds {
			var found []string
			for _, w := range store.CapabilitiesOf(open(c)).CheckServer(t.Context()) {
				found = append(found, w.Code)
			}
			if !slices.Equal(found, codes) {
				t.Errorf("kind %d warns of %q, want %q", i, found, codes)
			}
		}
	}
	check(cluster.Masters[0].Client(t, bounded), "cluster-node")
	whole := cluster.Client(t, bounds)
	check(whole)
	cluster.Masters[1].Client(t).ConfigSet(t.Context(), "maxmemory", "100mb")
	cluster.Masters[1].Client(t).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru")
	check(whole, "eviction-policy")
}

// A user with the rights that docs/operations.md lists can lock on a Cluster.
func TestAUserForLocksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	words, more := documentedUser(t, cluster.Masters[0].Client(t))
	words = append(words, more...)
	for _, node := range append(cluster.Masters, cluster.Replicas...) {
		if err := node.Client(t).Do(t.Context(), words...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	as := func(o *redis.ClusterOptions) { o.Username, o.Password = "locks", "secret" }
	client := cluster.Client(t)
	holder := acquire(t, newSingle(t, cluster.Client(t, as)), locker.Rule{Key: "order:1"})
	waits := newSingle(t, cluster.Client(t, as))
	waiter := queues(t, waits, locker.Rule{Key: "order:1"}, client)
	node, i := cluster.Owner(int(redisstore.SlotOf("order:1")))
	if n := listenersIn(t, node, "order:1"); n != 1 {
		t.Errorf("%d listen", n)
	}
	to := cluster.Masters[(i+1)%3]
	cluster.Migrate(t, int(redisstore.SlotOf("order:1")), node, to).Finish()
	eventually(t, "the waiter follows its slot", func() bool { return listenersIn(t, to, "order:1") == 1 })
	release(t, holder)
	release(t, waiter.Granted(5*time.Second))
	for _, node := range cluster.Masters {
		if refused := node.Client(t).ACLLog(t.Context(), 10).Val(); len(refused) > 0 {
			t.Errorf("%s refused: %+v", node.Addr(), refused[0])
		}
	}
}

func TestRunAllOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for name, opts := range map[string][]locker.SingleOption{"": nil, "acknowledged": {locker.WithReplicaAck(1, 4*time.Second)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen answers
			client := cluster.Client(t, seen.countErrors)
			l := newSingle(t, client, opts...)
			for _, keys := range [][]string{{"{all}" + name + ":1", "{all}" + name + ":2"}, {"one" + name, "two" + name, "three" + name, "four" + name}} {
				var rules []locker.Rule
				for _, key := range keys {
					rules = append(rules, locker.Rule{Key: key})
				}
				err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
					if n := len(locker.LeasesFromContext(ctx)); n != len(keys) {
						t.Errorf("%d leases of %v", n, keys)
					}
					for _, key := range keys {
						if client.Exists(ctx, key).Val() != 1 {
							t.Errorf("%s is not held", key)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
			if n := seen.countOf("CROSSSLOT"); n > 0 {
				t.Errorf("%d scripts went across slots", n)
			}
		})
	}
}

// The leases of two nodes are renewed together while one of the nodes hangs. The other node's
// answer counts at once, before the call to the hung node is given up.
func TestRenewalsOfTwoNodesAreAnsweredApart(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	s := locktest.SingleStore(cluster.Client(t))
	var claims []*store.Claim
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		c := store.Claim{Key: key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1}
		if g, err := s.Acquire(t.Context(), c); err != nil || g.State != store.Granted {
			t.Fatal(g, err)
		}
		claims = append(claims, &c)
	}
	hung, _ := cluster.Owner(int(redisstore.SlotOf(claims[0].Key)))
	hung.Pause()
	t.Cleanup(hung.Resume)
	type answer struct {
		place int
		grant store.Grant
	}
	all := make(chan answer, len(claims))
	s.(interface {
		BeginRenew(ctx context.Context, cs []*store.Claim, answered func([]int, []store.Grant))
	}).BeginRenew(t.Context(), claims, func(places []int, grants []store.Grant) {
		for n, i := range places {
			all <- answer{i, grants[n]}
		}
	})
	apart, unanswered := 0, 0
	for range claims {
		a := <-all
		switch node, _ := cluster.Owner(int(redisstore.SlotOf(claims[a.place].Key))); {
		case node == hung:
			if unanswered++; a.grant.Err == nil {
				t.Errorf("a node that stands still answered %+v", a.grant)
			}
		case a.grant.State != store.Granted || unanswered > 0:
			t.Errorf("a sound node's answer is %+v, after %d calls to the hung node were given up", a.grant, unanswered)
		default:
			apart++
		}
	}
	if apart == 0 || unanswered == 0 {
		t.Errorf("positive control: %d answers, %d calls without an answer", apart, unanswered)
	}
}
