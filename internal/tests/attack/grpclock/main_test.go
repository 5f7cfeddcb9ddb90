// Package grpclock_test attacks grpclock from outside, with real clients, servers and a real
// Redis. Its clients leave and lie.
package grpclock_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// target is a server that a test attacks.
type target struct {
	addr   string
	client *redis.Client
	prefix string
}

// serve starts a server that has the shop.
func serve(t *testing.T, s shop.ShopServer, rules *grpclock.Rules) *target {
	t.Helper()
	g := &target{client: redistest.Shared(t).Client(t), prefix: t.Name() + ":"}
	// The TTL is longer than the test. So a lease that was not released does not expire before
	// the test looks for it.
	l, err := locker.New(g.client, locker.WithPrefix(g.prefix), locker.WithTTL(10*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	options, err := grpclock.ServerOptions(l, rules)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(8<<20))...)
	shop.RegisterShopServer(server, s)
	if err := rules.Bind(server); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return g
}

// dial makes a client with a new connection.
func (g *target) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(g.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(8<<20)))
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

// eventually calls cond until cond returns true. If this takes too long, the test fails.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
	}
}
