package main

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/examples/scenes/stock"
	"github.com/latchkit/latchkit/sqllock"
)

// A stockroom is the gRPC service behind the shops, on a port of the loopback interface. Only the
// stockroom uses the tables of the sale.
type stockroom struct {
	stock.UnimplementedStockServer
	store  *store
	server *grpc.Server
	addr   string
}

func openStockroom(ctx context.Context, books *store) (*stockroom, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &stockroom{store: books, server: grpc.NewServer(), addr: listener.Addr().String()}
	stock.RegisterStockServer(s.server, s)
	go func() { _ = s.server.Serve(listener) }() // until close
	return s, nil
}

func (s *stockroom) close() { s.server.Stop() }

// dialStockroom returns a client of the stockroom at addr.
func dialStockroom(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Read returns the stock of an article.
func (s *stockroom) Read(ctx context.Context, r *stock.ReadRequest) (*stock.ReadReply, error) {
	left, err := s.store.stock(ctx, r.GetSku(), r.GetFence())
	if err != nil {
		return nil, refusal(err)
	}
	return &stock.ReadReply{Left: int64(left)}, nil
}

// Sell writes an order and the new stock. When the lock of the shop is lost, the shop's call ends,
// ctx ends with it, and the transaction with ctx.
func (s *stockroom) Sell(ctx context.Context, r *stock.SellRequest) (*stock.SellReply, error) {
	if err := s.store.sell(ctx, r.GetSku(), int(r.GetBuyer()), int(r.GetLeft()), r.GetFence()); err != nil {
		return nil, refusal(err)
	}
	return &stock.SellReply{}, nil
}

// refusal makes a status of an error. ABORTED says that another shop has got the lock meanwhile, so
// that the purchase must begin again with its first step.
func refusal(err error) error {
	if errors.Is(err, sqllock.ErrStaleFence) {
		return status.Error(codes.Aborted, "another shop has the lock by now: the fence is too small")
	}
	return err
}
