package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/examples/grpc-inventory/inventory"
	"github.com/latchkit/latchkit/grpclock"
)

// scenes has the two servers on which all scenes run.
type scenes struct {
	out        io.Writer
	east, west *server
	goods      goods
}

func (s *scenes) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }

// statusText returns the status of a call that ended with err, as text.
func statusText(err error) string {
	if reason, ok := grpclock.Reason(err); ok {
		return fmt.Sprintf("%v, %s", status.Code(err), reason)
	}
	return status.Code(err).String()
}

// sceneBusy sends two calls for the same key. The server refuses the second call, and returns a
// delay. After this delay, the client's interceptor sends the second call again.
func (s *scenes) sceneBusy(ctx context.Context) error {
	s.say("Two boxes of the same item are packed at once")
	var attempts atomic.Int32
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		defer attempts.Add(1)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	patient := grpclock.UnaryClientInterceptor(0, 0)
	client, err := s.west.dial(s.east, grpc.WithChainUnaryInterceptor(patient, count))
	if err != nil {
		return err
	}
	hasty, err := s.west.dial(s.east)
	if err != nil {
		return err
	}
	begun, finish := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.east.reserver, s.east.packing = noBox{}, func(context.Context) {
		once.Do(func() { close(begun); <-finish })
	}
	first := make(chan error, 1)
	go func() {
		_, err := hasty.Pack(ctx, &inventory.PackRequest{Sku: "screws"})
		first <- err
	}()
	<-begun
	_, err = hasty.Pack(ctx, &inventory.PackRequest{Sku: "screws"})
	s.say("  the second call is refused: %s, retry after %v", statusText(err), retryDelay(err))

	second := make(chan error, 1)
	go func() {
		_, err := client.Pack(ctx, &inventory.PackRequest{Sku: "screws"})
		second <- err
	}()
	for attempts.Load() == 0 && ctx.Err() == nil { // wait until the server has refused the second call once
		time.Sleep(time.Millisecond)
	}
	close(finish)
	s.say("  the first call finishes: %s", statusText(<-first))
	err = <-second
	s.say("  a client that retries succeeds with call no. %d: %s", attempts.Load(), statusText(err))
	return nil
}

// sceneCrowd sends many calls to both servers. Together, the calls want more items than the
// stock has.
func (s *scenes) sceneCrowd(ctx context.Context) error {
	s.say("50 calls to two servers request one item each, and there are %d items", *s.goods["screws"])
	var clients []inventory.InventoryClient
	for _, to := range []*server{s.east, s.west} {
		c, err := s.west.dial(to)
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	var reserved, refused, failed atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			_, err := clients[i%2].Reserve(ctx, &inventory.ReserveRequest{Sku: "screws", Count: 1})
			switch status.Code(err) {
			case codes.OK:
				reserved.Add(1)
			case codes.ResourceExhausted:
				refused.Add(1)
			default:
				failed.Add(1)
			}
		})
	}
	all.Wait()
	s.say("  %d reserved, %d sold out, %d failed, %d left", reserved.Load(), refused.Load(), failed.Load(), *s.goods["screws"])
	*s.goods["screws"] = 1
	return nil
}

// sceneBasket sends calls that lock several items each, in different orders.
func (s *scenes) sceneBasket(ctx context.Context) error {
	s.say("30 baskets of the same three items are reserved at once")
	client, err := s.west.dial(s.east)
	if err != nil {
		return err
	}
	baskets := [][]string{{"bolts", "nuts", "nails"}, {"nails", "bolts", "nuts"}, {"nuts", "nails", "bolts"}}
	var locks atomic.Int32
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			r := &inventory.ReserveAllRequest{}
			for _, sku := range baskets[i%3] {
				r.Items = append(r.Items, &inventory.ReserveRequest{Sku: sku, Count: 1})
			}
			if reply, err := client.ReserveAll(ctx, r); err == nil {
				locks.Add(reply.GetLocks())
			}
		})
	}
	all.Wait()
	s.say("  the calls held %d locks in all; %d bolts, %d nuts and %d nails are left", locks.Load(), *s.goods["bolts"], *s.goods["nuts"], *s.goods["nails"])
	return nil
}

// sceneShutdown stops a server gracefully while one call holds a lock and another call waits for
// it.
func (s *scenes) sceneShutdown(ctx context.Context) error {
	s.say("A server shuts down while one call works and another one waits")
	client, err := s.west.dial(s.east)
	if err != nil {
		return err
	}
	*s.goods["screws"] = 1
	begun, finish := make(chan struct{}), make(chan struct{})
	s.east.reserver, s.east.packing = noBox{}, func(context.Context) { close(begun); <-finish }
	working, waiting, stopped := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.Pack(ctx, &inventory.PackRequest{Sku: "screws"})
		working <- err
	}()
	<-begun
	go func() {
		_, err := client.Reserve(ctx, &inventory.ReserveRequest{Sku: "screws", Count: 1})
		waiting <- err
	}()
	time.Sleep(100 * time.Millisecond) // after this pause, the second call waits for the lock
	go func() { stopped <- s.east.shutdown(ctx) }()
	s.say("  the waiting call is refused at once: %s", statusText(<-waiting))
	close(finish)
	s.say("  the working call finishes: %s", statusText(<-working))
	return <-stopped
}

// retryDelay returns the delay in err, after which a refused client should try again, in whole
// seconds.
func retryDelay(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return max(info.GetRetryDelay().AsDuration().Round(time.Second), time.Second)
		}
	}
	return 0
}

// sceneCaller shows the mistake of a call that waits for its caller: it wants the lock under which
// its caller runs. A method without a lock, which gets the fence in its request, would not wait.
func (s *scenes) sceneCaller(ctx context.Context) error {
	s.say("One server packs a box, and reserves the item at the other server under the same key")
	client, err := s.west.dial(s.east)
	if err != nil {
		return err
	}
	other, err := s.east.dial(s.west)
	if err != nil {
		return err
	}
	s.east.reserver, s.east.packing = other, nil
	_, err = client.Pack(ctx, &inventory.PackRequest{Sku: "screws"})
	s.say("  the inner call waits for its own caller: %v", status.Code(err))
	// The inner call has given up: wait until it has left the queue.
	return s.east.awaitFree(ctx, "sku:screws")
}

// noBox is an inventory whose Reserve does nothing.
type noBox struct{ inventory.InventoryClient }

func (noBox) Reserve(context.Context, *inventory.ReserveRequest, ...grpc.CallOption) (*inventory.ReserveReply, error) {
	return &inventory.ReserveReply{}, nil
}
