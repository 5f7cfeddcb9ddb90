package grpclock_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
)

func TestAShutdownCutsNoCallThatHoldsItsLock(t *testing.T) {
	locktest.CheckShutdown(t, func(l locker.Locker, work func(context.Context) error) locktest.Stopping {
		rules := grpclock.FromDescriptors()
		options, err := grpclock.ServerOptions(l, rules)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(options...)
		shop.RegisterShopServer(server, &service{unary: func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
			return receipt(ctx), work(ctx)
		}})
		if err := rules.Bind(server); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return locktest.Stopping{
			Send: func(ctx context.Context, key string) string {
				_, err := shop.NewShopClient(conn).Wait(ctx, &shop.Order{OrderId: key})
				return answerOf(err)
			},
			Stop: func(context.Context) error {
				server.GracefulStop()
				return <-served
			},
		}
	})
}

func answerOf(err error) string {
	if err == nil {
		return locktest.Served
	}
	for _, d := range status.Convert(err).Details() {
		if _, ok := d.(*errdetails.RetryInfo); ok && status.Code(err) == codes.Unavailable {
			return locktest.Refused
		}
	}
	return err.Error()
}
