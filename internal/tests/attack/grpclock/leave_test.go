package grpclock_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
)

// hasty is a service whose handlers receive on separate goroutines and return at random moments.
type hasty struct{ shop.UnimplementedShopServer }

func pause(most time.Duration) { <-time.After(rand.N(most)) }

func (hasty) Talk(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
	received := make(chan error, 1)
	go func() {
		for {
			if _, err := s.Recv(); err != nil {
				received <- err
				return
			}
			_ = s.Send(&shop.Receipt{}) // fails when the client has left
		}
	}()
	switch rand.N(3) {
	case 0:
		return status.Error(codes.NotFound, "no such order") // returns while the goroutine may be taking the lock
	case 1:
		pause(600 * time.Microsecond)
		return nil
	}
	select {
	case err := <-received:
		if err == io.EOF {
			return nil
		}
		return err
	case <-s.Context().Done():
		return context.Cause(s.Context())
	}
}

func (hasty) Fill(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
	go func() { _, _ = s.Recv() }()
	pause(600 * time.Microsecond)
	return s.SendAndClose(&shop.Receipt{})
}

func (hasty) Watch(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
	for rand.N(4) > 0 {
		if err := s.Send(&shop.Receipt{}); err != nil {
			return err
		}
	}
	return nil
}

var streams = flag.Int("streams", 2000, "how many streams are left by their clients")

// Thousands of clients cancel their streams at random moments, some of them while they wait for
// the lock. Afterwards no key is locked.
func TestThousandsOfStreamsThatClientsLeaveKeepNoLock(t *testing.T) {
	const workers = 40
	byRequest := grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Talk_FullMethodName:  {Key: "order:{req.order_id}"},
		shop.Shop_Fill_FullMethodName:  {Key: "order:{req.order_id}"},
		shop.Shop_Watch_FullMethodName: {Key: "order:{req.order_id}"},
	})
	g := serve(t, hasty{}, byRequest)
	conns := make([]shop.ShopClient, 4)
	for i := range conns {
		conns[i] = shop.NewShopClient(g.dial(t))
	}
	before := runtime.NumGoroutine()
	var next atomic.Int32
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for n := next.Add(1); n <= int32(*streams); n = next.Add(1) {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
				// There are fewer keys than streams, so some streams wait for other streams.
				order := &shop.Order{OrderId: fmt.Sprint(n % 2000)}
				open(ctx, conns[n%4], n, order)
				cancel()
			}
		})
	}
	all.Wait()
	eventually(t, "no key is locked", func() bool { return len(g.keys(t)) == 0 })
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+workers })
}

// open opens a stream. It leaves the stream when ctx ends or the handler returns.
func open(ctx context.Context, c shop.ShopClient, n int32, order *shop.Order) {
	switch n % 3 {
	case 0:
		if s, err := c.Talk(ctx); err == nil {
			_ = s.Send(order) // fails when the handler has returned
			for err == nil {
				_, err = s.Recv()
			}
		}
	case 1:
		if s, err := c.Fill(ctx); err == nil {
			_ = s.Send(order)
			_, _ = s.CloseAndRecv()
		}
	default:
		if s, err := c.Watch(ctx, order); err == nil {
			for err == nil {
				_, err = s.Recv()
			}
		}
	}
}
