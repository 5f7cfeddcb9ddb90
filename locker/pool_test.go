package locker_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// narrow lets a client have two connections.
func narrow(o *redis.Options) { o.PoolSize = 2 }

// onClient returns a Locker on client, which is closed when the test ends, even with calls that
// hang.
func onClient(t *testing.T, client *redis.Client) *locker.Engine {
	t.Helper()
	l, err := locker.New(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// The service blocks all connections of its client for longer than a lease lasts. A Locker on the
// same client cannot renew its lease.
func TestALockerWithItsOwnClientKeepsItsLeasesWhileTheServicesPoolIsExhausted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct, service := server.Client(t), server.Client(t, narrow)
	const ttl = 3 * time.Second
	doomed := acquire(t, onClient(t, service), locker.Rule{Key: "pool:shared", TTL: ttl})
	kept := acquire(t, onClient(t, server.Client(t, narrow)), locker.Rule{Key: "pool:own", TTL: ttl})

	traffic, stop := context.WithCancel(t.Context())
	defer stop()
	for range 2 {
		go func() { service.BLPop(traffic, 0, "pool:empty") }()
	}
	blocked := func() string { return field(direct.Info(t.Context(), "clients").Val(), "blocked_clients") }
	eventually(t, "all connections of the service are taken", func() bool { return blocked() == "2" })

	lost(t, doomed, locker.ErrLost) // positive control: the lease on the service's client is lost
	expires := kept.Expires()
	eventually(t, "the other lease outlives this by two TTLs", func() bool {
		return kept.Context().Err() != nil || kept.Expires().After(expires.Add(2*ttl))
	})
	if kept.Context().Err() != nil {
		t.Error(context.Cause(kept.Context()))
	}
	if blocked() != "2" {
		t.Errorf("positive control: %s connections are blocked", blocked())
	}
	direct.RPush(t.Context(), "pool:empty", 1, 2) // otherwise the Locker on this client cannot be closed
	release(t, kept)
}

// trip is the time that a batch of calls needs to a distant server. With a shorter one, the callers of the
// test would need all of a busy machine's CPU.
const trip = 100 * time.Millisecond

// farConn is a connection to a distant server.
type farConn struct{ net.Conn }

// Write delays what is sent, and not what is received: a reply may come in any number of pieces.
func (c farConn) Write(b []byte) (int, error) {
	<-time.After(trip)
	return c.Conn.Write(b)
}

func TestTheLockersOwnAcquiresDoNotStarveItsRenewals(t *testing.T) {
	t.Parallel()
	for _, byContext := range []bool{false, true} {
		t.Run(fmt.Sprintf("ContextTimeoutEnabled=%v", byContext), func(t *testing.T) {
			t.Parallel()
			client := redistest.Start(t).Client(t, narrow, func(o *redis.Options) {
				o.ContextTimeoutEnabled = byContext
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := new(net.Dialer).DialContext(ctx, network, addr)
					return farConn{c}, err
				}
			})
			l := onClient(t, client)
			const ttl, callers = 3 * time.Second, 60 // with a connection for each call, a renewal would wait for callers/2 trips
			kept := acquire(t, l, locker.Rule{Key: "pool:kept", TTL: ttl})
			traffic, stop := context.WithCancel(t.Context())
			var under atomic.Int32 // the acquires under way
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					for round := 0; traffic.Err() == nil; round++ {
						under.Add(1)
						lease, err := l.Acquire(traffic, locker.Rule{Key: fmt.Sprintf("pool:%d:%d", i, round)})
						under.Add(-1)
						if err == nil {
							go func() { _ = lease.Release(context.WithoutCancel(traffic)) }()
						}
					}
				})
			}
			eventually(t, "most callers wait for a connection", func() bool { return under.Load() > callers/2 })
			expires := kept.Expires()
			eventually(t, "the lease outlives this by three TTLs", func() bool {
				return kept.Context().Err() != nil || kept.Expires().After(expires.Add(3*ttl))
			})
			if kept.Context().Err() != nil {
				t.Error(context.Cause(kept.Context()))
			}
			stop()
			all.Wait()
		})
	}
}
