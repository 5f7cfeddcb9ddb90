package redisstore

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// CheckServer looks at what the server, or every master of the cluster, does when its memory is
// full. It also finds out whether one server belongs to a cluster that the client does not know. A
// proxy, a substitute for Redis, or a server whose ACL forbids these questions does not answer them.
// CheckServer reports nothing about such a server. A problem that several masters have is reported
// once.
func (s *Store) CheckServer(ctx context.Context) []store.Warning {
	var mu sync.Mutex
	var found []store.Warning
	check := func(text string, err error) {
		if err != nil {
			return
		}
		info := fieldsOf(text)
		mu.Lock()
		defer mu.Unlock()
		found = append(found, serverWarnings(info)...)
		if s.cluster == nil && info["cluster_enabled"] == "1" {
			found = append(found, store.Warning{
				Code: "cluster-node",
				Text: "the server is one node of a Redis Cluster, and refuses keys of the other nodes; give a *redis.ClusterClient",
			})
		}
	}
	if s.cluster == nil {
		check(runCommand(ctx, s.links, link.Ask, "info"))
		return found
	}
	_ = s.cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		check(master.Info(ctx).Result())
		return nil
	})
	byCode := func(a, b store.Warning) int { return strings.Compare(a.Code, b.Code) }
	slices.SortFunc(found, byCode)
	return slices.CompactFunc(found, func(a, b store.Warning) bool { return a.Code == b.Code })
}

// noMessages is the warning for a server that refuses subscriptions, or scripts that send messages.
var noMessages = store.Warning{
	Code: "no-messages",
	Text: "the server forbids messages, so waiters poll, and hand-offs take longer; allow SUBSCRIBE, PUBLISH, PUBSUB and the channels that docs/operations.md lists, or see docs/hosted.md",
}

// unseen is the warning for a server whose scripts do not see the subscriptions.
var unseen = store.Warning{
	Code: noMessages.Code,
	Text: errNoMessages.Error() + ", as behind a proxy that sends subscriptions to another server; waiters poll, so hand-offs take longer; " +
		"connect the Locker to the server itself, or use locker.WithoutQueue",
}

// fieldsOf returns the fields of a server's reply to INFO, by name.
func fieldsOf(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	return info
}

func serverWarnings(info map[string]string) (found []store.Warning) {
	limit, policy := info["maxmemory"], info["maxmemory_policy"]
	if limit != "" && limit != "0" && policy != "" && policy != "noeviction" {
		found = append(found, store.Warning{
			Code: "eviction-policy",
			Text: "the server may drop locks when its memory is full (maxmemory-policy " + policy + "); give locks a server with noeviction",
		})
	}
	return found
}
