package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// lateGrant is a Locker that lets its caller continue only some time after the grant.
type lateGrant struct {
	locker.Locker
	granted func()
}

func (l lateGrant) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	lease, err := l.Locker.Acquire(ctx, r)
	if err == nil {
		l.granted()
	}
	return lease, err
}

// A handler may receive on another goroutine, and return while that goroutine is taking the lock.
func TestAHandlerThatReturnsJustAfterTheGrantLeavesNoLock(t *testing.T) {
	byRequest := grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Talk_FullMethodName: {Key: "order:{req.order_id}"},
		shop.Shop_Fill_FullMethodName: {Key: "order:{req.order_id}"},
	})
	for name, open := range map[string]func(ctx context.Context, c shop.ShopClient) error{
		"bidirectional": func(ctx context.Context, c shop.ShopClient) error {
			s, err := c.Talk(ctx)
			if err != nil {
				return err
			}
			_ = s.Send(&shop.Order{OrderId: "42"}) // Send fails when the handler has returned already
			_, err = s.Recv()
			return err
		},
		"client streaming": func(ctx context.Context, c shop.ShopClient) error {
			s, err := c.Fill(ctx)
			if err != nil {
				return err
			}
			_ = s.Send(&shop.Order{OrderId: "42"})
			_, err = s.CloseAndRecv()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			granted, returning := make(chan struct{}), make(chan struct{})
			l := lateGrant{lockertest.NewLocker(t, store), func() {
				close(granted)
				<-returning
				time.Sleep(20 * time.Millisecond) //nolint:forbidigo // by now, the handler has returned
			}}
			own := status.Error(codes.NotFound, "no such order")
			client := serve(t, setup{locker: l, rules: byRequest, service: &service{
				talk: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
					go func() { _, _ = s.Recv() }()
					<-granted
					defer close(returning)
					return own
				},
				fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
					go func() { _, _ = s.Recv() }()
					<-granted
					defer close(returning)
					return own
				},
			}})
			if err := open(t.Context(), client); status.Code(err) != codes.NotFound {
				t.Errorf("the client got %v, want the handler's status", err)
			}
			if n := store.Len(); n != 0 {
				t.Errorf("%d keys are locked after the stream", n)
			}
		})
	}
}

// The handler of a stream may return before the grant. Such a handler has done nothing under the
// lock. So its work is not recorded as done, and the next stream runs.
func TestAHandlerThatReturnsBeforeTheGrantHasNotDoneItsWork(t *testing.T) {
	for name, result := range map[string]error{"success": nil, "failure": status.Error(codes.NotFound, "no such order")} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			granted, returning := make(chan struct{}), make(chan struct{})
			var late sync.Once
			l := lateGrant{lockertest.NewLocker(t, store), func() {
				late.Do(func() {
					close(granted)
					<-returning
					time.Sleep(20 * time.Millisecond) //nolint:forbidigo // by now, the handler has returned
				})
			}}
			first := true
			client := serve(t, setup{
				locker: l,
				rules: grpclock.FromMap(grpclock.RuleMap{
					shop.Shop_Talk_FullMethodName: {Key: "order:{req.order_id|text}", OnceFor: time.Hour},
				}),
				service: &service{talk: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
					if first { // needs no mutex, because there is one stream at a time
						first = false
						go func() { _, _ = s.Recv() }()
						<-granted
						defer close(returning)
						return result
					}
					if _, err := s.Recv(); err != nil {
						return err
					}
					return s.Send(receipt(s.Context()))
				}},
			})
			talk := func() error {
				s, err := client.Talk(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Send(&shop.Order{OrderId: "42"}) // Send fails when the handler has returned already
				return lastOf(s)
			}
			want(t, talk(), status.Code(result), "")
			if n := store.Len(); n != 0 {
				t.Errorf("%d keys are locked after the stream", n)
			}
			want(t, talk(), codes.OK, "")
			// The second stream has done the work, so the third stream is refused.
			want(t, talk(), codes.AlreadyExists, grpclock.ReasonDone)
		})
	}
}

// recovering is an interceptor that recovers from panics, as recovery interceptors do.
func recovering(recovered *atomic.Pointer[any]) grpc.StreamServerInterceptor {
	return func(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() {
			if v := recover(); v != nil {
				recovered.Store(&v)
				err = status.Error(codes.Internal, "recovered")
			}
		}()
		return handler(server, s)
	}
}

// skuOf panics if the order has no item.
var skuOf = grpclock.KeyOf(func(o *shop.Order) string { return "sku:" + o.Item.Sku })

// receiving is the stream of an outer interceptor. The interceptor looks at each message, and
// panics.
type receiving struct{ grpc.ServerStream }

func (receiving) RecvMsg(any) error { panic("RecvMsg") }

func TestAPanicOnAStreamReachesTheRecoveryInterceptor(t *testing.T) {
	handlers := service{
		watch: func(*shop.Order, grpc.ServerStreamingServer[shop.Receipt]) error { return nil },
		fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
			_, err := s.Recv()
			return err
		},
		talk: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
			received := make(chan error, 1)
			go func() { // no recovery interceptor can recover from a panic on this goroutine
				_, err := s.Recv()
				received <- err
			}()
			return <-received
		},
	}
	watch := func(c shop.ShopClient) error {
		s, err := c.Watch(t.Context(), &shop.Order{})
		return firstOf(err, s)
	}
	fill := func(c shop.ShopClient) error {
		s, err := c.Fill(t.Context())
		if err != nil {
			return err
		}
		_ = s.Send(&shop.Order{}) // Send fails when the stream has ended already
		_, err = s.CloseAndRecv()
		return err
	}
	talk := func(c shop.ShopClient) error {
		s, err := c.Talk(t.Context())
		if err != nil {
			return err
		}
		_ = s.Send(&shop.Order{})
		return firstOf(nil, s)
	}
	for name, tc := range map[string]struct {
		service shop.ShopServer
		opts    []grpclock.Option
		rule    grpclock.Rule
		inner   grpc.StreamServerInterceptor
		want    string
	}{
		"KeyOf": {service: &handlers, rule: grpclock.Rule{Func: skuOf}, want: "nil pointer"},
		"WithRule": {service: &handlers, rule: grpclock.Rule{Key: "k"}, want: "WithRule",
			opts: []grpclock.Option{grpclock.WithRule(func(context.Context, string, any, *locker.Rule) { panic("WithRule") })}},
		"RecvMsg": {service: &handlers, rule: grpclock.Rule{Key: "k"}, want: "RecvMsg",
			inner: func(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				return handler(server, receiving{s})
			}},
		"the Locker": {service: &handlers, rule: grpclock.Rule{Key: "k"}, want: "Acquire"},
	} {
		for kind, open := range map[string]func(shop.ShopClient) error{"watch": watch, "fill": fill, "talk": talk} {
			t.Run(name+" "+kind, func(t *testing.T) {
				store := lockertest.NewMemory()
				var l locker.Locker = lockertest.NewLocker(t, store)
				if tc.want == "Acquire" {
					l = lockerFunc(func(locker.Rule) error { panic("Acquire") })
				}
				var recovered atomic.Pointer[any]
				around := []grpc.StreamServerInterceptor{recovering(&recovered)}
				if tc.inner != nil {
					around = append(around, tc.inner)
				}
				client := serve(t, setup{
					locker: l, service: tc.service, opts: tc.opts, around: around,
					rules: grpclock.FromMap(grpclock.RuleMap{
						shop.Shop_Watch_FullMethodName: tc.rule, shop.Shop_Fill_FullMethodName: tc.rule, shop.Shop_Talk_FullMethodName: tc.rule,
					}),
				})
				if err := open(client); status.Code(err) != codes.Internal || status.Convert(err).Message() != "recovered" {
					t.Errorf("the client got %v", err)
				}
				if v := recovered.Load(); v == nil || !strings.Contains(fmt.Sprint(*v), tc.want) {
					t.Errorf("the recovery interceptor got %v, want %q in it", recovered.Load(), tc.want)
				}
				if n := store.Len(); n != 0 {
					t.Errorf("%d keys are locked after the panic", n)
				}
			})
		}
	}
}

// The functions of WithObserve are the program's. When they panic, the recovery interceptors must
// catch the panic, and the process must live.
func TestAnObserverThatPanicsReachesTheRecoveryInterceptor(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:busy", 0)
	var recovered atomic.Pointer[any]
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store),
		around: []grpc.StreamServerInterceptor{recovering(&recovered)},
		opts:   []grpclock.Option{grpclock.WithObserve(func(context.Context, *grpclock.Problem) { panic("WithObserve") })},
		service: &service{fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
			received := make(chan error)
			go func() { // no recovery interceptor can recover from a panic on this goroutine
				_, err := s.Recv()
				received <- err
			}()
			return <-received
		}},
	})
	s, err := client.Fill(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&shop.Order{OrderId: "busy"}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&shop.Receipt{}); err == nil || !strings.Contains(err.Error(), "recovered") {
		t.Errorf("the client got %v", err)
	}
	if v := recovered.Load(); v == nil {
		t.Error("no panic reached the recovery interceptor")
	}
}

// A Send may wait for a client that does not read. When the lock is lost, this wait ends, too.
func TestALostLockEndsASendThatWaits(t *testing.T) {
	store := lockertest.NewMemory()
	sending := make(chan error, 1)
	client := serve(t, setup{locker: lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond)), service: &service{
		watch: func(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
			for n := 0; ; n++ {
				if n == 1 {
					store.Steal("order:42")
				}
				if err := s.Send(&shop.Receipt{Key: strings.Repeat("x", 1<<20)}); err != nil {
					sending <- err
					return err
				}
			}
		},
	}})
	if _, err := client.Watch(t.Context(), &shop.Order{OrderId: "42"}); err != nil { // this client does not read
		t.Fatal(err)
	}
	want(t, <-sending, codes.Aborted, grpclock.ReasonLost)
}

// A client may not read, or send nothing. Its stream holds the lock until EndAfter is over, and
// then Recv and Send return.
func TestEndAfterEndsAStreamWhoseClientDoesNothing(t *testing.T) {
	rule := grpclock.Rule{Key: "order:{req.order_id}", EndAfter: 300 * time.Millisecond}
	for name, open := range map[string]func(ctx context.Context, client shop.ShopClient) error{
		"the client does not read": func(ctx context.Context, client shop.ShopClient) error {
			_, err := client.Watch(ctx, &shop.Order{OrderId: "42"})
			return err
		},
		"the client does not write": func(ctx context.Context, client shop.ShopClient) error {
			s, err := client.Fill(ctx)
			if err == nil {
				err = s.Send(&shop.Order{OrderId: "42"})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			handled, ended := make(chan error, 1), make(chan error, 1)
			client := serve(t, setup{locker: lockertest.NewLocker(t, store), rules: grpclock.FromMap(grpclock.RuleMap{
				shop.Shop_Watch_FullMethodName: rule, shop.Shop_Fill_FullMethodName: rule,
			}), service: &service{
				watch: func(_ *shop.Order, s grpc.ServerStreamingServer[shop.Receipt]) error {
					for {
						if err := s.Send(&shop.Receipt{Key: strings.Repeat("x", 1<<20)}); err != nil {
							handled <- err
							return err
						}
					}
				},
				fill: func(s grpc.ClientStreamingServer[shop.Order, shop.Receipt]) error {
					for {
						if _, err := s.Recv(); err != nil {
							handled <- err
							return nil //nolint:nilerr // the handler ignores the error
						}
					}
				},
			}, around: []grpc.StreamServerInterceptor{
				func(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
					err := handler(server, s)
					ended <- err
					return err
				},
			}})
			if err := open(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			want(t, <-handled, codes.Aborted, grpclock.ReasonLost)
			want(t, <-ended, codes.Aborted, grpclock.ReasonLost)
			eventually(t, "no key is locked", func() bool { return store.Len() == 0 })
		})
	}
}

// Clients leave at random moments, some of them while the lock is being taken.
func TestStreamsThatClientsLeaveKeepNoLock(t *testing.T) {
	store := lockertest.NewMemory()
	client := serve(t, setup{locker: lockertest.NewLocker(t, store), rules: grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Talk_FullMethodName: {Key: "order:{req.order_id}"},
	}), service: &service{talk: textbook}})
	var wg sync.WaitGroup
	for worker := range 20 {
		wg.Go(func() {
			for n := range 25 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((worker*25+n)%60)*10*time.Microsecond)
				if s, err := client.Talk(ctx); err == nil {
					_ = s.Send(&shop.Order{OrderId: fmt.Sprint(worker, n)})
					<-ctx.Done()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	eventually(t, "no key is locked", func() bool { return store.Len() == 0 })
}

// textbook is a bidirectional handler as it is usually written: it receives on a separate
// goroutine.
func textbook(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
	orders := make(chan *shop.Order)
	ended := make(chan error, 1)
	go func() {
		for {
			o, err := s.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case orders <- o:
			case <-s.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case o := <-orders:
			if err := s.Send(&shop.Receipt{Key: o.GetOrderId()}); err != nil {
				return err
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-s.Context().Done():
			return context.Cause(s.Context())
		}
	}
}

func TestObserversSeeEachProblem(t *testing.T) {
	var mu sync.Mutex
	var reasons []string
	store := lockertest.NewMemory()
	store.Occupy("order:busy", 0)
	client := serve(t, setup{
		locker: lockertest.NewLocker(t, store), service: &service{},
		opts: []grpclock.Option{grpclock.WithObserve(func(_ context.Context, p *grpclock.Problem) {
			mu.Lock()
			defer mu.Unlock()
			reasons = append(reasons, p.Reason+" "+p.Method)
		})},
	})
	_, err := client.Place(t.Context(), &shop.Order{OrderId: "busy"})
	want(t, err, codes.Aborted, grpclock.ReasonBusy)
	_, err = client.Place(t.Context(), &shop.Order{})
	want(t, err, codes.InvalidArgument, grpclock.ReasonInvalidKey)
	mu.Lock()
	defer mu.Unlock()
	place := " " + shop.Shop_Place_FullMethodName
	if got := strings.Join(reasons, ", "); got != "LOCK_BUSY"+place+", INVALID_KEY"+place {
		t.Errorf("observed %s", got)
	}
}

// With WithFailOpen, an observer is notified on the goroutine that receives the first message. A
// panic of the observer must not end the process there. The panic must reach the recovery
// interceptor.
func TestAnObserverThatPanicsDuringAnOutageReachesTheRecoveryInterceptor(t *testing.T) {
	down := lockerFunc(func(r locker.Rule) error {
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrUnavailable}
	})
	intercept, err := grpclock.StreamServerInterceptor(down, grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Talk_FullMethodName: {Key: "order:{req.order_id}"},
	}), grpclock.WithFailOpen(), grpclock.WithObserve(func(context.Context, *grpclock.Problem) { panic("WithObserve") }))
	if err != nil {
		t.Fatal(err)
	}
	escaped := make(chan any, 1)
	defer func() {
		if recover() == nil {
			t.Error("no panic reached the recovery interceptor")
		}
		if v := <-escaped; v != nil {
			t.Errorf("the panic %v was on the handler's goroutine", v)
		}
	}()
	_ = intercept(nil, &fakeStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: shop.Shop_Talk_FullMethodName}, func(_ any, s grpc.ServerStream) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { escaped <- recover() }()
			_ = s.RecvMsg(&shop.Order{})
		}()
		<-done
		return nil
	})
}
