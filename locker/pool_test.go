package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// The other traffic of the service uses all connections of the client for longer than a lease
// lasts. Renewals wait for a connection, and the lease is lost. Renewals through a client of their
// own do not have to wait.
func TestRenewalsThroughTheirOwnClientSurviveAFullPool(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := server.Client(t)
	const ttl, connections = time.Second, 2
	start := func(opts ...locker.SingleOption) (*redis.Client, *locker.Lease) {
		client := server.Client(t, func(o *redis.Options) { o.PoolSize = connections })
		l, err := locker.NewSingle(client, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = l.Close(ctx)
		})
		key := "pool:with"
		if len(opts) == 0 {
			key = "pool:without"
		}
		return client, acquire(t, l, locker.Rule{Key: key, TTL: ttl})
	}
	apart, kept := start(locker.WithRenewClient(server.Client(t)))
	together, doomed := start()

	traffic, stop := context.WithCancel(t.Context())
	defer stop()
	for _, client := range []*redis.Client{apart, together} {
		for range connections {
			go func() { client.BLPop(traffic, 0, "pool:empty") }()
		}
	}
	blocked := func() string { return field(direct.Info(t.Context(), "clients").Val(), "blocked_clients") }
	eventually(t, "all connections are taken", func() bool { return blocked() == "4" })

	lost(t, doomed, locker.ErrLost) // positive control: this lease is lost, because its Locker has no client for renewals
	expires := kept.Expires()
	eventually(t, "the other lease outlives this by two TTLs", func() bool { return kept.Expires().After(expires.Add(2 * ttl)) })
	if kept.Context().Err() != nil {
		t.Error(context.Cause(kept.Context()))
	}
	if blocked() != "4" {
		t.Errorf("positive control: %s connections are blocked", blocked())
	}
	// End the calls that use up the pools, because otherwise the leases cannot be released.
	direct.RPush(t.Context(), "pool:empty", 1, 2, 3, 4)
	release(t, kept)
}
