package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

func TestAcknowledgedObeysTheLaws(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	store := func(c locker.Client) store.Store {
		s, err := ackedStore(c, 1, 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("on a server", func(t *testing.T) {
		t.Parallel()
		checkLawsOn(t, func(*testing.T) site { return serverSite(t, r.server, patientReads) }, store)
	})
	t.Run("on a cluster", func(t *testing.T) {
		t.Parallel()
		clusterLaws(t, redistest.StartCluster(t), store)
	})
}

// kinds are the Stores that obey the laws on each topology.
var kinds = map[string]func(c locker.Client) store.Store{
	"one by one":   locktest.SingleStore,
	"with readers": locktest.ReadWriteStore,
	"with permits": locktest.SemaphoreStore,
}

func TestSentinelObeysTheLaws(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t)
	for name, store := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sentinelLaws(t, set, store)
		})
	}
}

func sentinelLaws(t *testing.T, set *redistest.SentinelSet, store func(c locker.Client) store.Store) {
	t.Helper()
	master := set.Servers[0]
	direct := master.Client(t)
	checkLawsOn(t, func(*testing.T) site {
		return site{
			direct: direct,
			addrs:  []string{master.Addr()},
			client: func(dial dialer) redis.UniversalClient {
				return redis.NewFailoverClient(&redis.FailoverOptions{
					MasterName: redistest.SentinelName, SentinelAddrs: set.Addrs(), Dialer: dial,
				})
			},
			listeners: func(channel string) int64 {
				return direct.PubSubNumSub(context.Background(), channel).Val()[channel]
			},
		}
	}, store)
}

func TestClusterObeysTheLaws(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for name, store := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clusterLaws(t, cluster, store)
		})
	}
}

func clusterLaws(t *testing.T, cluster *redistest.Cluster, store func(c locker.Client) store.Store) {
	t.Helper()
	direct := cluster.Client(t)
	checkLawsOn(t, func(*testing.T) site {
		return site{
			direct: direct,
			addrs:  cluster.Addrs(),
			client: func(dial dialer) redis.UniversalClient {
				return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Dialer: dial, ReadTimeout: 10 * time.Second})
			},
			listeners: clusterListeners(direct),
		}
	}, store)
}

func clusterListeners(direct *redis.ClusterClient) func(channel string) int64 {
	return func(channel string) int64 {
		node, err := direct.MasterForKey(context.Background(), channel)
		if err != nil {
			return -1
		}
		return node.PubSubShardNumSub(context.Background(), channel).Val()[channel] +
			node.PubSubNumSub(context.Background(), channel).Val()[channel]
	}
}

// The laws of all Lockers on one server hold over TLS, and for a user with the documented commands
// and channels. Some laws list keys, so the user has the documented rights of an operator. It may
// use all keys, because the laws have other keys than the documented line. No proxy can read the
// calls that are sent over TLS, so the laws on lost replies are left out.
func TestTheLawsHoldOverTLSForTheDocumentedUser(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	direct := server.Client(t)
	words, _ := documentedUser(t, direct)
	if err := direct.Do(t.Context(), append(words, "~*", "+scan", "+getrange")...).Err(); err != nil {
		t.Fatal(err)
	}
	over := func(*testing.T) site {
		return site{
			direct: direct,
			client: func(dialer) redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: server.Addr(), TLSConfig: direct.Options().TLSConfig, Username: "locks", Password: "secret"})
			},
			listeners: func(channel string) int64 {
				return direct.PubSubNumSub(context.Background(), channel).Val()[channel]
			},
		}
	}
	t.Run("laws", func(t *testing.T) {
		for name, store := range map[string]func(c locker.Client) store.Store{
			"exclusive": locktest.SingleStore, "readers": locktest.ReadWriteStore, "permits": locktest.SemaphoreStore,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				checkLawsOn(t, over, store)
			})
		}
	})
	for _, refused := range direct.ACLLog(t.Context(), 100).Val() {
		t.Errorf("the server refused: %+v", refused)
	}
}

// The laws hold when all connections to a Sentinel set, or to a Cluster, are TLS connections: those
// of clients, and those between the servers.
func TestTheLawsHoldOverTLSOnSentinelAndCluster(t *testing.T) {
	t.Parallel()
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		set := redistest.StartTLSSentinel(t)
		direct := set.Client(t)
		checkLawsOn(t, func(*testing.T) site {
			return site{
				direct: direct,
				client: func(dialer) redis.UniversalClient {
					return redis.NewFailoverClient(&redis.FailoverOptions{
						MasterName: redistest.SentinelName, SentinelAddrs: set.Addrs(), TLSConfig: direct.Options().TLSConfig,
					})
				},
				listeners: func(channel string) int64 {
					return direct.PubSubNumSub(context.Background(), channel).Val()[channel]
				},
			}
		}, locktest.SingleStore)
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.StartTLSCluster(t)
		direct := cluster.Client(t)
		checkLawsOn(t, func(*testing.T) site {
			return site{
				direct: direct,
				client: func(dialer) redis.UniversalClient {
					return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), TLSConfig: direct.Options().TLSConfig})
				},
				listeners: clusterListeners(direct),
			}
		}, locktest.SingleStore)
	})
}

// The first program of the README works over each kind of connection that a service may have: with
// RESP2, with a Cluster over TLS, and with Sentinels and servers that want passwords. A waiter gets
// the key by a message.
func TestTheFirstProgramWorksOverEachKindOfConnection(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, open func() (*locker.Engine, error), direct redis.UniversalClient) {
		t.Helper()
		var both []*locker.Engine
		for range 2 {
			l, err := open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			both = append(both, l)
		}
		lease := acquire(t, both[0], locker.Rule{Key: "order:42"})
		waiter := queues(t, both[1], locker.Rule{Key: "order:42", Wait: 20 * time.Second}, direct)
		release(t, lease)
		next := waiter.Granted(5 * time.Second)
		if next.Fence() <= lease.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
		}
		release(t, next)
	}
	t.Run("RESP2 and a password", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, "--requirepass", "secret")
		check(t, func() (*locker.Engine, error) { return locker.Open("redis://:secret@" + server.Addr() + "?protocol=2") }, server.Client(t))
	})
	t.Run("a Cluster over TLS", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.StartTLSCluster(t)
		direct := cluster.Client(t)
		check(t, func() (*locker.Engine, error) {
			return locker.Open(&redis.ClusterOptions{Addrs: cluster.Addrs(), TLSConfig: direct.Options().TLSConfig})
		}, direct)
	})
	t.Run("Sentinel with passwords", func(t *testing.T) {
		t.Parallel()
		set := redistest.StartSentinel(t)
		set.Protect(t, "of servers", "of sentinels")
		options := func(o *redis.FailoverOptions) { o.Password, o.SentinelPassword = "of servers", "of sentinels" }
		check(t, func() (*locker.Engine, error) {
			o := &redis.FailoverOptions{MasterName: redistest.SentinelName, SentinelAddrs: set.Addrs()}
			options(o)
			return locker.Open(o)
		}, set.Client(t, options))
	})
}
