package redisstore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// CheckServer looks at the client's options and at what the server does when its memory is full.
// It also finds out whether the server belongs to a cluster that the client does not know. A
// proxy, a substitute for Redis, or a server whose ACL forbids these questions does not answer
// them. CheckServer reports nothing about such a server.
func (s Single) CheckServer(ctx context.Context) []store.Warning {
	found := clientWarnings(s.server)
	info, err := serverInfo(ctx, s.Client)
	if err != nil {
		return found
	}
	found = append(found, serverWarnings(info)...)
	if info["cluster_enabled"] == "1" {
		found = append(found, store.Warning{
			Code: "cluster-node",
			Text: "the server is one node of a Redis Cluster, and refuses keys of the other nodes; give a *redis.ClusterClient",
		})
	}
	return found
}

// CheckServer checks every master. A problem that several masters have is reported once.
func (s Cluster) CheckServer(ctx context.Context) []store.Warning {
	var mu sync.Mutex
	found := make(map[string]store.Warning)
	for _, w := range clientWarnings(s.server) {
		found[w.Code] = w
	}
	_ = s.cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		info, err := serverInfo(ctx, link.Plain{Client: master})
		if err != nil {
			return nil // report no warning
		}
		mu.Lock()
		defer mu.Unlock()
		for _, w := range serverWarnings(info) {
			found[w.Code] = w
		}
		return nil
	})
	return slices.SortedFunc(maps.Values(found), func(a, b store.Warning) int { return strings.Compare(a.Code, b.Code) })
}

// clientWarnings returns a warning if the options of the client c set no time-out for calls.
// Without a time-out, no call can run on its caller's goroutine, so each call needs another
// goroutine.
func clientWarnings(c Client) []store.Warning {
	if !link.CallsByGoroutine(c) {
		return nil
	}
	return []store.Warning{{
		Code: "calls-by-goroutine",
		Text: "the client does not end a call with its context, so each call to Redis changes goroutines, which costs time; set ContextTimeoutEnabled in the client's options",
	}}
}

// serverInfo returns the fields of the server's reply to INFO, by name.
func serverInfo(ctx context.Context, sender link.Sender) (info map[string]string, err error) {
	text, err := runCommand(ctx, sender, link.Step, "info")
	if err != nil {
		return nil, err
	}
	info = make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	return info, nil
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
