package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

// clusterSlots is how many slots a cluster has. Each master starts with a third of the slots.
const clusterSlots = 16384

// Cluster is a Redis Cluster of three masters with one replica each. [StartCluster] makes a
// Cluster; the zero value is not usable.
type Cluster struct {
	Masters  []*Server // the masters at the start, in the order of their slots
	Replicas []*Server // Replicas[i] follows Masters[i]

	tls *tls.Config // the configuration of its clients; nil: the nodes do not use TLS
}

// StartCluster starts a cluster for this test alone. The cluster stops when the test ends.
// StartCluster returns when all nodes agree on the owners of the slots, and the replicas have their
// masters' data. The arguments are arguments of redis-server, for all nodes. Without the argument
// --cluster-node-timeout, no replica takes over by itself, and a node that does not answer is down
// after 15 s: on a machine that is short of processors, 2 s without an answer would be a failover
// that the test does not expect.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{}
	c.startFor(t, args)
	return c
}

// StartTLSCluster does the work of [StartCluster] for nodes that accept only TLS connections, from
// clients and from each other.
func StartTLSCluster(t testing.TB) *Cluster {
	t.Helper()
	config, args := certified(t)
	c := &Cluster{tls: config}
	c.startFor(t, append(args, "--tls-cluster", "yes", "--tls-replication", "yes"))
	return c
}

func (c *Cluster) startFor(t testing.TB, args []string) {
	t.Helper()
	if err := c.start(args); err != nil {
		t.Fatal(errors.Join(err, c.Close()))
	}
	for _, s := range c.nodes() {
		s.t = t
		t.Cleanup(s.cleanUp)
	}
}

// LaunchCluster starts a cluster outside of tests. The cluster runs until Close is called.
func LaunchCluster(args ...string) (*Cluster, error) {
	c := &Cluster{}
	if err := c.start(args); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(args []string) error {
	failsOver := slices.Contains(args, "--cluster-node-timeout")
	args = append(append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}, quickSync...), args...)
	for _, role := range []*[]*Server{&c.Masters, &c.Replicas} {
		for range 3 {
			s, err := launch(&Server{tls: c.tls, args: args})
			if err != nil {
				return err
			}
			*role = append(*role, s)
		}
	}
	for i, s := range c.nodes() {
		err := s.runOnce(func(ctx context.Context, r *redis.Client) error {
			errs := []error{r.Do(ctx, "cluster", "set-config-epoch", i+1).Err()}
			for _, other := range c.nodes()[:i] { // introduce all nodes to each other, because gossip would take seconds
				errs = append(errs, r.ClusterMeet(ctx, loopback, strconv.Itoa(other.port)).Err())
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return err
		}
	}
	for i, s := range c.Masters {
		err := s.runOnce(func(ctx context.Context, r *redis.Client) error {
			return r.ClusterAddSlotsRange(ctx, clusterSlots*i/3, clusterSlots*(i+1)/3-1).Err()
		})
		if err != nil {
			return err
		}
	}
	for i, s := range c.Replicas {
		id, err := c.Masters[i].NodeID()
		if err != nil {
			return err
		}
		// A replica can follow a master only when it knows the master.
		err = s.awaitNoError("follow its master", func(ctx context.Context, r *redis.Client) error {
			return r.ClusterReplicate(ctx, id).Err()
		})
		if err != nil {
			return err
		}
	}
	if err := c.awaitReady(); err != nil || failsOver {
		return err
	}
	for _, s := range c.nodes() {
		err := s.runOnce(func(ctx context.Context, r *redis.Client) error {
			return errors.Join(r.ConfigSet(ctx, "cluster-node-timeout", "15000").Err(), r.ConfigSet(ctx, "cluster-replica-no-failover", "yes").Err())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitReady returns when every node redirects clients to the right nodes.
func (c *Cluster) awaitReady() error {
	want := map[string]string{} // the master of each replica; "" for a master
	for i, s := range c.Masters {
		want[s.Addr()], want[c.Replicas[i].Addr()] = "", s.Addr()
	}
	for _, s := range c.nodes() {
		err := s.awaitNoError("see the whole cluster", func(ctx context.Context, r *redis.Client) error {
			info, err := r.ClusterInfo(ctx).Result()
			if err != nil {
				return err
			}
			shards, err := r.ClusterSlots(ctx).Result() //nolint:staticcheck // clients call it too; ClusterShards shows replicas sooner
			if err != nil {
				return err
			}
			got, slots := map[string]string{}, 0
			for _, shard := range shards {
				slots += shard.End - shard.Start + 1
				for i, node := range shard.Nodes {
					if got[node.Addr] = ""; i > 0 {
						got[node.Addr] = shard.Nodes[0].Addr
					}
				}
			}
			if slots != clusterSlots || !maps.Equal(got, want) || !clusterOK(info) {
				return fmt.Errorf("it sees %v, %d slots, %s", got, slots, info)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, s := range c.Replicas {
		if err := s.awaitSync(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) nodes() []*Server {
	return append(slices.Clip(c.Masters), c.Replicas...)
}

// Addrs returns the addresses of the masters, for redis.ClusterOptions.
func (c *Cluster) Addrs() []string { return addrs(c.Masters) }

// Client returns a client of the cluster. The client is closed when the test ends.
func (c *Cluster) Client(t testing.TB, mod ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	options := &redis.ClusterOptions{Addrs: c.Addrs(), TLSConfig: c.tls}
	for _, change := range mod {
		change(options)
	}
	client := redis.NewClusterClient(options)
	client.AddHook(scriptCheck{t})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("ping the cluster: %v", err)
	}
	return client
}

// Close kills all nodes and removes their folders. Clusters of tests are closed automatically.
func (c *Cluster) Close() error { return closeAll(c.nodes()) }
