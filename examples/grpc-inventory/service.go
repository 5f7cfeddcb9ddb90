package main

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/examples/grpc-inventory/inventory"
	"github.com/latchkit/latchkit/locker"
)

// goods is the stock: the number of each item. There is no mutex, because only the locks of the
// calls guard the numbers.
type goods map[string]*int32

func newGoods(n int32, skus ...string) goods {
	g := make(goods)
	for _, sku := range skus {
		left := n
		g[sku] = &left
	}
	return g
}

// service is the inventory. It contains no code for locks.
type service struct {
	inventory.UnimplementedInventoryServer
	goods    goods
	packing  func(ctx context.Context) // called by the method Pack while it holds the lock
	reserver inventory.InventoryClient // a client of another server, which reserves the content of a box
}

// Reserve reads the stock of an item, computes the remaining stock, and writes it.
func (s *service) Reserve(ctx context.Context, r *inventory.ReserveRequest) (*inventory.ReserveReply, error) {
	left, err := s.stockAfter(r)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // the client has left, or the lock was lost
		return nil, status.FromContextError(err).Err()
	}
	*s.goods[r.GetSku()] = left
	return &inventory.ReserveReply{Left: left, Fence: fence(ctx)}, nil
}

// stockAfter returns the stock of an item as it will be after the request r.
func (s *service) stockAfter(r *inventory.ReserveRequest) (int32, error) {
	stock, ok := s.goods[r.GetSku()]
	if !ok {
		return 0, status.Errorf(codes.NotFound, "there is no item %q", r.GetSku())
	}
	left := *stock - r.GetCount()
	if left < 0 {
		return 0, status.Error(codes.ResourceExhausted, "sold out")
	}
	return left, nil
}

// ReserveAll reserves all items or none.
func (s *service) ReserveAll(ctx context.Context, r *inventory.ReserveAllRequest) (*inventory.ReserveAllReply, error) {
	for _, item := range r.GetItems() {
		if _, err := s.stockAfter(item); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	for _, item := range r.GetItems() {
		*s.goods[item.GetSku()] -= item.GetCount()
	}
	return &inventory.ReserveAllReply{Locks: int32(len(locker.LeasesFromContext(ctx)))}, nil
}

// Pack locks an item. It calls another server, which locks the same item.
func (s *service) Pack(ctx context.Context, r *inventory.PackRequest) (*inventory.PackReply, error) {
	if s.packing != nil {
		s.packing(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reserved, err := s.reserver.Reserve(ctx, &inventory.ReserveRequest{Sku: r.GetSku(), Count: 1})
	if err != nil {
		return nil, err
	}
	return &inventory.PackReply{Fence: fence(ctx), ReserveFence: reserved.GetFence()}, nil
}

// fence returns the fence of the lock under which the call runs.
func fence(ctx context.Context) uint64 {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return 0
	}
	return lease.Fence()
}
