package locker

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Examine looks at what the server does when its memory is full, and at whether it is a part of a cluster that the client does
// not know. A server that does not say (a proxy, a substitute, an ACL) is taken as it is.
func (s single) Examine(ctx context.Context) []Warning {
	says, err := look(ctx, s.client)
	if err != nil {
		return nil
	}
	found := unsafe(says)
	if says["cluster_enabled"] == "1" {
		found = append(found, Warning{
			Code: "cluster-node",
			Text: "the server is one node of a Redis Cluster, and refuses keys of the others; give a redis.ClusterClient",
		})
	}
	return found
}

// Examine looks at every master; what is wrong with several is said once.
func (s clustered) Examine(ctx context.Context) []Warning {
	var mu sync.Mutex
	found := make(map[string]Warning)
	_ = s.cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		says, err := look(ctx, master)
		if err != nil {
			return nil // as it is
		}
		mu.Lock()
		defer mu.Unlock()
		for _, w := range unsafe(says) {
			found[w.Code] = w
		}
		return nil
	})
	return slices.SortedFunc(maps.Values(found), func(a, b Warning) int { return strings.Compare(a.Code, b.Code) })
}

// look asks a server about itself.
func look(ctx context.Context, c Client) (says map[string]string, err error) {
	text, err := do(ctx, c, "info")
	if err != nil {
		return nil, err
	}
	says = make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		says[name] = value
	}
	return says, nil
}

func unsafe(says map[string]string) (found []Warning) {
	limit, policy := says["maxmemory"], says["maxmemory_policy"]
	if limit != "" && limit != "0" && policy != "" && policy != "noeviction" {
		found = append(found, Warning{
			Code: "eviction-policy",
			Text: "the server may drop locks when its memory is full (maxmemory-policy " + policy + "); give locks a server with noeviction",
		})
	}
	return found
}
