package redisstore

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/redis/go-redis/v9"
)

// sites are where channels are subscribed.
type sites interface {
	slot(key string) uint16
	channel(slot uint16, plain bool) string
	// node is the node that serves a channel, and its address.
	node(ctx context.Context, channel string) (Subscriber, string, error)
	// reload is called when a channel may be served by another node than before.
	reload(ctx context.Context)
}

// Subscriber is a Client that can subscribe: a *redis.Client is one.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// oneServer is one server: one channel, whatever the number of keys.
type oneServer struct {
	client Subscriber
	name   string
}

// NewChannel is a name that no other inbox has.
func NewChannel() string { return inboxPrefix + rand.Text() }

// NewSubscription is the subscription to a channel of that name on one server. It lasts from the
// first Open to the stop of Listen.
func NewSubscription(s Subscriber, channel string) *Subscriptions {
	return newSubscriptions(oneServer{s, channel}, 0)
}

func (oneServer) slot(string) uint16            { return 0 }
func (o oneServer) channel(uint16, bool) string { return o.name }
func (oneServer) reload(context.Context)        {}

func (o oneServer) node(context.Context, string) (Subscriber, string, error) {
	return o.client, "", nil
}

// clusterSites are the slots of a cluster.
type clusterSites struct {
	cluster ClusterClient
	random  string // makes the channels of this Engine unique
}

// unusedAfter is how long an unused channel stays subscribed. A waiter uses it at least every
// othersAsk.
const unusedAfter = time.Minute

// NewShardSubscriptions are the subscriptions to the channels of a cluster.
func NewShardSubscriptions(c ClusterClient) *Subscriptions {
	return newSubscriptions(clusterSites{c, rand.Text()}, unusedAfter)
}

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
