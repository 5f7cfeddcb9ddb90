package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// When a slot moves, the event names the slot's inbox. When a line (the connection to a node,
// with all its channels) is lost, the event names no inbox.
func TestTheEventOfASlotThatMovedNamesItsInbox(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	p := newPost(t, cluster.Client(t))
	const key = "moves"
	other := ""
	for n := 0; other == "" || !sameNode(cluster, key, other) || redisstore.SlotOf(key) == redisstore.SlotOf(other); n++ {
		other = fmt.Sprint("stays ", n)
	}
	for _, key := range []string{key, other} {
		if _, err := p.Open(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	slot := int(redisstore.SlotOf(key))
	from, i := cluster.Owner(slot)
	cluster.Migrate(t, slot, from, cluster.Masters[(i+1)%3]).Finish()
	// While the nodes do not agree on the slot's owner, the subscription may fail. This failure
	// causes an event too.
	for {
		e := p.next()
		if e.Kind != store.EventReopened || e.Inbox != p.Address(key) {
			t.Fatalf("event %+v, want EventReopened at the inbox of the slot", e)
		}
		if p.Inbox(key) != "" {
			break
		}
	}
	if p.Inbox(other) == "" {
		t.Error("the channel of another slot was lost, too")
	}
}

// Address returns the inbox of a key, even while the process has not subscribed to it.
func (p *post) Address(key string) string {
	return p.Notifier.(interface{ Address(string) string }).Address(key)
}

// A former master that has become a replica, and still runs, redirects its callers to the new
// master.
func TestAFormerMasterOfAClusterDelaysNobody(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	const key = "k"
	_, i := cluster.Owner(int(redisstore.SlotOf(key)))
	l := newSingle(t, cluster.Client(t))
	lease := acquire(t, l, locker.Rule{Key: key, TTL: 5 * time.Second})
	cluster.Failover(t, cluster.Replicas[i])
	before := lease.Expires()
	eventually(t, "the lease is renewed at the new master", func() bool { return lease.Expires().After(before) || lease.Context().Err() != nil })
	release(t, lease)
	release(t, acquire(t, l, locker.Rule{Key: key, Wait: time.Second}))
}

// After a failover, a name or the address of a load balancer leads to another server, while the
// former master still runs as its replica. When the former master answers READONLY, the client's
// connections to it are closed, even if the Redis version hides READONLY in another error.
func TestAFormerMasterBehindANameDelaysNobody(t *testing.T) {
	t.Parallel()
	old, promoted := redistest.Start(t), redistest.Start(t)
	var leads atomic.Pointer[redistest.Server]
	leads.Store(old)
	client := old.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, leads.Load().Addr())
		}
	})
	l := newSingle(t, client)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	leads.Store(promoted)
	if err := old.Client(t).Do(t.Context(), "replicaof", "127.0.0.1", fmt.Sprint(promoted.Port())).Err(); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, locker.Rule{Key: "k", Wait: 5 * time.Second}))
	if n := promoted.Client(t).Exists(t.Context(), redisstore.CounterKey("k")).Val(); n != 1 {
		t.Error("the lock was taken elsewhere than at the new master")
	}
}
