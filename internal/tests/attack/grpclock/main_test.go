// Package grpclock_test attacks grpclock from outside, with real clients, servers and a real
// Redis. Its clients leave, stop, lie, and repeat requests.
package grpclock_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// target is a server that a test attacks.
type target struct {
	server *grpc.Server
	addr   string
	locker *locker.Engine
	client *redis.Client
	prefix string

	acquires atomic.Int32
}

// counted is a Locker that counts the calls of Acquire.
type counted struct {
	*locker.Engine
	acquires *atomic.Int32
}

func (c counted) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	c.acquires.Add(1)
	return c.Engine.Acquire(ctx, r)
}

// serve starts a server with three services: the shop, health and reflection.
func serve(t *testing.T, s shop.ShopServer, rules *grpclock.Rules, opts ...grpclock.Option) *target {
	t.Helper()
	g := &target{client: redistest.Shared(t).Client(t), prefix: t.Name() + ":"}
	var err error
	// The TTL is longer than the test. So a lease that was not released does not expire before
	// the test looks for it.
	if g.locker, err = locker.New(g.client, locker.WithPrefix(g.prefix), locker.WithTTL(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.locker.Close(context.Background()) })
	options, err := grpclock.ServerOptions(counted{g.locker, &g.acquires}, rules, opts...)
	if err != nil {
		t.Fatal(err)
	}
	g.server = grpc.NewServer(append(options, grpc.MaxRecvMsgSize(8<<20))...)
	shop.RegisterShopServer(g.server, s)
	healthpb.RegisterHealthServer(g.server, health.NewServer())
	reflection.Register(g.server)
	if err := rules.Bind(g.server); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- g.server.Serve(listener) }()
	t.Cleanup(func() {
		g.server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return g
}

// dial makes a client with a new connection.
func (g *target) dial(t *testing.T, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(g.addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(8<<20)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// keys returns the keys of the leases on the server.
func (g *target) keys(t *testing.T) []string {
	t.Helper()
	keys, err := g.client.Keys(t.Context(), strings.NewReplacer("[", `\[`, "]", `\]`).Replace(g.prefix)+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// checkError checks that the error err of a call has this code, and this reason of grpclock.
// The reason is "" for an error that grpclock has not made. The parameter what is the name of
// the call in a failure.
func checkError(t *testing.T, what string, err error, code codes.Code, reason string) {
	t.Helper()
	if got, _ := grpclock.Reason(err); status.Code(err) != code || got != reason {
		t.Errorf("%s: %v with the reason %q, want %v with %q", what, err, got, code, reason)
	}
}

// eventually calls cond until cond returns true. If this takes too long, the test fails.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
	}
}
