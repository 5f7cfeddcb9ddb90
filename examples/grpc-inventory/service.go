package main

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/examples/grpc-inventory/inventory"
	"github.com/latchkit/latchkit/locker"
)

// goods are what there is to be had. No mutex guards them: only the locks of the calls do.
type goods map[string]int32

func newGoods(sku string, n int32) goods { return goods{sku: n} }

// service is the inventory. Nothing in it takes a lock.
type service struct {
	inventory.UnimplementedInventoryServer
	goods   goods
	packing func(ctx context.Context) // while a box is packed
	other   inventory.InventoryClient // another server, which reserves for a box
}

// Reserve reads, computes, and writes.
func (s *service) Reserve(ctx context.Context, r *inventory.ReserveRequest) (*inventory.ReserveReply, error) {
	left := s.goods[r.GetSku()] - r.GetCount()
	if left < 0 {
		return nil, status.Error(codes.ResourceExhausted, "sold out")
	}
	if err := ctx.Err(); err != nil { // the call was given up, or the lock is lost
		return nil, status.FromContextError(err).Err()
	}
	s.goods[r.GetSku()] = left
	return &inventory.ReserveReply{Left: left, Fence: fence(ctx)}, nil
}

// Pack calls another server for the item that it holds itself.
func (s *service) Pack(ctx context.Context, r *inventory.PackRequest) (*inventory.PackReply, error) {
	if s.packing != nil {
		s.packing(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reserved, err := s.other.Reserve(ctx, &inventory.ReserveRequest{Sku: r.GetSku(), Count: 1})
	if err != nil {
		return nil, err
	}
	return &inventory.PackReply{Fence: fence(ctx), ReserveFence: reserved.GetFence()}, nil
}

// fence is that of the lock under which the call runs.
func fence(ctx context.Context) uint64 {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return 0
	}
	return lease.Fence()
}
