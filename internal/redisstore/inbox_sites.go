package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
)

// sites finds the nodes on which channels are subscribed.
type sites interface {
	slot(key string) uint16
	channel(slot uint16, plain bool) string
	// node returns the node that serves a channel, and its address.
	node(ctx context.Context, channel string) (Subscriber, string, error)
	// reload is called when another node than before may serve a channel.
	reload(ctx context.Context)
}

// Subscriber is a client of go-redis that can subscribe.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// oneServer has the sites of one server, which has one channel for all keys.
type oneServer struct {
	client Subscriber
	name   string
}

func (oneServer) slot(string) uint16            { return 0 }
func (o oneServer) channel(uint16, bool) string { return o.name }
func (oneServer) reload(context.Context)        {}

func (o oneServer) node(context.Context, string) (Subscriber, string, error) {
	return o.client, "", nil
}

// clusterSites has the sites of a cluster.
type clusterSites struct {
	cluster link.Cluster
	random  string // makes the channels of this Engine unique
}

// unusedAfter is how long an unused channel stays subscribed. It is longer than othersAsk and
// notifiedRenewals of package locker: waiters look for their channel before each question, and
// readers use it with each renewal.
const unusedAfter = time.Minute

func (clusterSites) slot(key string) uint16       { return SlotOf(key) }
func (c clusterSites) reload(ctx context.Context) { c.cluster.ReloadState(ctx) }

func (c clusterSites) channel(slot uint16, plain bool) string {
	if plain {
		return inboxPrefix + TagOfSlot(slot) + ":" + c.random
	}
	return shardPrefix + TagOfSlot(slot) + ":" + c.random
}

func (c clusterSites) node(ctx context.Context, channel string) (Subscriber, string, error) {
	node, err := c.cluster.MasterForKey(ctx, channel)
	if err != nil {
		return nil, "", err
	}
	return node, node.Options().Addr, nil
}
