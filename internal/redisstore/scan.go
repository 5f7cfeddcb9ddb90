package redisstore

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/store"
)

// pageSize is how many keys a server looks at in one step of a scan.
const pageSize = 500

// Keys returns the sorted keys of the server, or of all masters of the cluster, that are leases or
// have a queue, and match the pattern. It scans the masters at the same time.
func (s *Store) Keys(ctx context.Context, pattern string) ([]string, error) {
	var mu sync.Mutex
	found := make(map[string]struct{}) // a scan may return a key twice
	add := func(key string) {
		mu.Lock()
		defer mu.Unlock()
		found[key] = struct{}{}
	}
	var err error
	if s.cluster == nil {
		err = s.scan(ctx, s.server, pattern, pageSize, add)
	} else {
		err = Refused(s.cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			return s.scan(ctx, master, pattern, 1, add)
		}))
	}
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// scan calls the function found for each key of one server that is a lease or has a queue, and
// matches the pattern. All keys are scanned twice: for leases, which may have any name, and for
// queues, whose names contain the names of their leases. The parameter most is the largest number
// of keys that a script may get. On a Cluster, most is 1, because any slot may be moving.
func (s *Store) scan(ctx context.Context, server Client, pattern string, most int, found func(string)) error {
	err := pages(ctx, server, pattern, "string", func(keys []string) error {
		keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasPrefix(key, store.ReservedPrefix) })
		return s.leases(ctx, keys, most, found)
	})
	if err != nil {
		return err
	}
	return pages(ctx, server, queuePrefix+"*}:"+pattern, "zset", func(queues []string) error {
		for _, queue := range queues {
			if _, l, ok := strings.Cut(queue, "}:"); ok && QueueKey(l) == queue {
				found(l)
			}
		}
		return nil
	})
}

// pages scans for keys of one type whose names match the pattern, and calls the function page with
// each part of the result.
func pages(ctx context.Context, server Client, pattern, kind string, page func([]string) error) error {
	for cursor := uint64(0); ; {
		cmd := redis.NewScanCmd(ctx, nil, "scan", strconv.FormatUint(cursor, 10), "match", pattern, "count", pageSize, "type", kind)
		if err := server.Process(ctx, cmd); err != nil {
			return Refused(err)
		}
		keys, next := cmd.Val()
		if err := page(keys); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// leases runs leases.lua, in calls that get at most as many keys as the parameter most allows. All
// calls run at the same time.
func (s *Store) leases(ctx context.Context, keys []string, most int, found func(string)) error {
	parts := slices.Collect(slices.Chunk(keys, most))
	answers := make([]string, len(parts))
	errs := make([]error, len(parts))
	var calls sync.WaitGroup
	for i, part := range parts {
		calls.Go(func() {
			answers[i], errs[i] = leasesScript.Run(ctx, s.links, part)
			if errs[i] == nil && len(answers[i]) != len(part) {
				errs[i] = Unreadable("leases")
			}
		})
	}
	calls.Wait()
	for i, part := range parts {
		if errs[i] != nil {
			return errs[i]
		}
		for j, key := range part {
			if answers[i][j] == '1' {
				found(key)
			}
		}
	}
	return nil
}
