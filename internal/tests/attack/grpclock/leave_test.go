package grpclock_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
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

// steady is a service whose streams continue until their clients leave or their contexts end.
type steady struct{ shop.UnimplementedShopServer }

func (steady) Fill(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return s.SendAndClose(&shop.Receipt{})
		} else if err != nil {
			return err
		}
	}
}

func (steady) Watch(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
	for {
		if err := s.Send(&shop.Receipt{Key: string(make([]byte, 1<<20))}); err != nil {
			return err
		}
	}
}

func (steady) Place(context.Context, *shop.Order) (*shop.Receipt, error) {
	return &shop.Receipt{}, nil
}

// One client does not read the response of its stream, and another client does not finish its
// request. Both want the same key as a hundred other clients. The rule has an EndAfter, so these
// hundred clients all get the key.
func TestNobodyIsRefusedBecauseOfSlowClients(t *testing.T) {
	rule := grpclock.Rule{Key: "order:{req.order_id}", Wait: time.Minute, EndAfter: 300 * time.Millisecond}
	g := serve(t, steady{}, grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Watch_FullMethodName: rule, shop.Shop_Fill_FullMethodName: rule, shop.Shop_Place_FullMethodName: rule,
	}))
	order := &shop.Order{OrderId: "42"}
	unread, err := shop.NewShopClient(g.dial(t)).Watch(t.Context(), order)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := shop.NewShopClient(g.dial(t)).Fill(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.Send(order); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a slow client has the lock", func() bool { return len(g.keys(t)) > 0 })
	others := shop.NewShopClient(g.dial(t))
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			_, err := others.Place(t.Context(), order)
			checkError(t, "a client that is not slow", err, codes.OK, "")
		})
	}
	all.Wait()
	_, err = silent.CloseAndRecv()
	checkError(t, "the client that did not write", err, codes.Aborted, grpclock.ReasonLost)
	for err = nil; err == nil; {
		_, err = unread.Recv()
	}
	checkError(t, "the client that did not read", err, codes.Aborted, grpclock.ReasonLost)
}

// When the Locker closes, it ends the waits at once, and lets the holder finish. So GracefulStop
// waits only for the holder.
func TestWaitersAreRefusedAtOnceWhenTheLockerCloses(t *testing.T) {
	h := &holding{entered: make(chan struct{}), finish: make(chan struct{}), stubborn: true}
	rule := grpclock.Rule{Key: "order:{req.order_id}", Wait: time.Hour}
	g := serve(t, h, grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: rule, shop.Shop_Fill_FullMethodName: rule}))
	c := shop.NewShopClient(g.dial(t))
	order := &shop.Order{OrderId: "42"}
	holder := make(chan error, 1)
	go func() {
		_, err := c.Place(t.Context(), order)
		holder <- err
	}()
	<-h.entered
	waiters := make(chan error, 20)
	for i := range cap(waiters) {
		go func() {
			if i%2 == 0 {
				_, err := c.Place(t.Context(), order)
				waiters <- err
				return
			}
			s, err := c.Fill(t.Context())
			if err == nil {
				if err = s.Send(order); err == nil {
					_, err = s.CloseAndRecv()
				}
			}
			waiters <- err
		}()
	}
	eventually(t, "the streams and calls wait", func() bool { return g.acquires.Load() == 1+int32(cap(waiters)) })
	closed := make(chan error, 1)
	go func() { closed <- g.locker.Close(t.Context()) }()
	for range cap(waiters) {
		checkError(t, "a waiter", <-waiters, codes.Unavailable, grpclock.ReasonClosed)
	}
	stopped := make(chan struct{})
	go func() { g.server.GracefulStop(); close(stopped) }()
	close(h.finish)
	checkError(t, "the holder", <-holder, codes.OK, "")
	<-stopped
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// holding is a service whose first call holds its lock until the test ends the call.
type holding struct {
	steady
	once            sync.Once
	entered, finish chan struct{}
	stubborn        bool // the call finishes its work although its context has ended
}

func (h *holding) Place(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
	h.once.Do(func() { close(h.entered) })
	if h.stubborn {
		<-h.finish
		return &shop.Receipt{}, nil
	}
	select {
	case <-h.finish:
		return &shop.Receipt{}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// When the Locker closes, the context of a holder ends at once. If the handler then returns,
// its client receives the error that the Locker is closed. The error does not show the key.
func TestAHolderThatObeysItsContextEndsWithTheLocker(t *testing.T) {
	h := &holding{entered: make(chan struct{}), finish: make(chan struct{})}
	g := serve(t, h, grpclock.FromMap(grpclock.RuleMap{shop.Shop_Place_FullMethodName: {Key: "order:{req.order_id}"}}))
	c := shop.NewShopClient(g.dial(t))
	holder := make(chan error, 1)
	go func() {
		_, err := c.Place(t.Context(), &shop.Order{OrderId: "secret"})
		holder <- err
	}()
	<-h.entered
	if err := g.locker.Close(t.Context()); err != nil {
		t.Error(err)
	}
	err := <-holder
	checkError(t, "the holder", err, codes.Unavailable, grpclock.ReasonClosed)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the status shows the key: %v", err)
	}
}

// A client that retries a refused call gets the lock, even if another holder keeps the lock for
// longer than one call may wait.
func TestAClientThatObeysThePushbackGetsIn(t *testing.T) {
	h := &holding{entered: make(chan struct{}), finish: make(chan struct{})}
	g := serve(t, h, grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Place_FullMethodName: {Key: "order:{req.order_id}", Wait: 100 * time.Millisecond},
	}))
	order := &shop.Order{OrderId: "42"}
	holder := make(chan error, 1)
	go func() {
		_, err := shop.NewShopClient(g.dial(t)).Place(t.Context(), order)
		holder <- err
	}()
	<-h.entered
	time.AfterFunc(time.Second, func() { close(h.finish) })
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	patient := shop.NewShopClient(g.dial(t, grpc.WithDefaultServiceConfig(grpclock.RetryServiceConfig("latchkit.shop.v1.Shop"))))
	_, err := patient.Place(ctx, order)
	checkError(t, "the patient client", err, codes.OK, "")
	checkError(t, "the holder", <-holder, codes.OK, "")
}
