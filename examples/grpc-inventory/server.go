package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/latchkit/latchkit/examples/grpc-inventory/inventory"
	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/locker"
)

// server has the parts that one process of the service would have.
type server struct {
	*service
	addr     string
	locks    *locker.Engine
	shutdown func(ctx context.Context) error // stops the server gracefully
	ends     []func()
}

// start starts a server on a free port. The first half of start is the code for the locks.
func start(client *redis.Client, goods goods) (s *server, err error) {
	s = &server{service: &service{goods: goods}}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	l, err := locker.New(client)
	if err != nil {
		return s, err
	}
	s.locks = l
	rules := grpclock.FromDescriptors()
	options, err := grpclock.ServerOptions(l, rules)
	if err != nil {
		return s, err
	}
	g := grpc.NewServer(options...)
	inventory.RegisterInventoryServer(g, s.service)
	// an error reports mistakes in the .proto file, or that the server lacks the interceptor
	if err := rules.Bind(g); err != nil {
		return s, err
	}
	s.shutdown = func(ctx context.Context) error {
		// During Drain, calls that hold a lock finish, and all others are refused with
		// UNAVAILABLE. GracefulStop alone would wait for the whole queue. It tells the clients to
		// leave, so it begins at once.
		drained := make(chan error, 1)
		go func() { drained <- l.Drain(ctx) }()
		context.AfterFunc(ctx, g.Stop) // GracefulStop waits for open streams without an end
		g.GracefulStop()
		return errors.Join(<-drained, l.Close(context.Background()))
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return s, err
	}
	s.addr = listener.Addr().String()
	s.ends = append(s.ends, func() { g.Stop(); _ = l.Close(context.Background()) })
	go func() { _ = g.Serve(listener) }() // returns after Stop or GracefulStop
	return s, nil
}

// awaitFree waits until a key has no holder and no waiters.
func (s *server) awaitFree(ctx context.Context, key string) error {
	for {
		info, err := s.locks.Inspect(ctx, key)
		if err != nil || !info.Held && info.Waiters == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// stop ends the server. It does not wait until calls that are under way have ended.
func (s *server) stop() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}

// dial returns a client that calls the server target.
func (s *server) dial(target *server, opts ...grpc.DialOption) (inventory.InventoryClient, error) {
	conn, err := grpc.NewClient(target.addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, func() { _ = conn.Close() })
	return inventory.NewInventoryClient(conn), nil
}
