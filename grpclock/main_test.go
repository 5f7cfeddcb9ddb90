package grpclock_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// service is a Shop whose methods are defined by the test. A method that the test does not define
// returns a Receipt of its lease.
type service struct {
	shop.UnimplementedShopServer
	unary func(ctx context.Context, o *shop.Order) (*shop.Receipt, error)
	watch func(o *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error
	fill  func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error
	talk  func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error
}

func (s *service) call(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	if s.unary != nil {
		return s.unary(ctx, o)
	}
	return receipt(ctx), nil
}
func (s *service) Place(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	return s.call(ctx, o)
}
func (s *service) Wait(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	return s.call(ctx, o)
}
func (s *service) Move(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	return s.call(ctx, o)
}
func (s *service) Once(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	return s.call(ctx, o)
}
func (s *service) Basket(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	return s.call(ctx, o)
}

func (s *service) Read(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
	return s.call(ctx, o)
}
func (s *service) Watch(o *shop.Order, stream grpc.ServerStreamingServer[shop.Receipt]) error {
	return s.watch(o, stream)
}

func (s *service) Fill(stream grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
	return s.fill(stream)
}

func (s *service) Talk(stream grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
	return s.talk(stream)
}

// receipt returns a Receipt that describes the lease of a handler.
func receipt(ctx context.Context) *shop.Receipt {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return &shop.Receipt{}
	}
	return &shop.Receipt{Fence: lease.Fence(), Key: lease.Key()}
}

// setup says how a server is started. The interceptors in setup are chained outside of the
// interceptors of grpclock.
type setup struct {
	locker  locker.Locker
	rules   *grpclock.Rules // default: the rules of the .proto file
	opts    []grpclock.Option
	outer   []grpc.UnaryServerInterceptor
	around  []grpc.StreamServerInterceptor
	service shop.ShopServer
	dial    []grpc.DialOption
}

// serve starts a server on loopback, and returns a client that calls it.
func serve(t testing.TB, s setup) shop.ShopClient {
	t.Helper()
	if s.rules == nil {
		s.rules = grpclock.FromDescriptors()
	}
	options, err := grpclock.ServerOptions(s.locker, s.rules, s.opts...)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(s.outer...), grpc.ChainStreamInterceptor(s.around...)}, options...)...)
	shop.RegisterShopServer(server, s.service)
	if err := s.rules.Bind(server); err != nil {
		t.Fatal(err)
	}
	return dial(t, server, s.dial...)
}

// dial makes a server serve on loopback, and returns a client that calls it.
func dial(t testing.TB, server *grpc.Server, opts ...grpc.DialOption) shop.ShopClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return shop.NewShopClient(conn)
}

// bind binds rules to a server and makes the interceptors, as a program does.
func bind(t testing.TB, rules *grpclock.Rules, server registered) error {
	t.Helper()
	if _, err := grpclock.ServerOptions(lockertest.NewLocker(t, lockertest.NewMemory()), rules); err != nil {
		t.Fatal(err)
	}
	return rules.Bind(server)
}

// redisLocker makes a Locker on the Redis that all tests share.
func redisLocker(t testing.TB) *locker.Engine {
	t.Helper()
	l, err := locker.New(redistest.Shared(t).Client(t), locker.WithPrefix(t.Name()+":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// want checks how a call has ended. The reason "" stands for OK.
func want(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	got, _ := grpclock.Reason(err)
	if status.Code(err) != code || got != reason {
		t.Errorf("%v with the reason %q, want %v with %q", err, got, code, reason)
	}
}

// eventually waits until a condition is true. It waits long enough for a slow machine.
func eventually(t testing.TB, what string, true func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !true(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
	}
}

// lockerFunc is a Locker that refuses every Rule.
type lockerFunc func(locker.Rule) error

func (f lockerFunc) Acquire(_ context.Context, rule locker.Rule) (*locker.Lease, error) {
	return nil, f(rule)
}
