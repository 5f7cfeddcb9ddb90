package grpclock_test

import (
	"context"
	"fmt"
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

// The key is made, and the message is received, when the handler calls Recv.
func TestAPanicOnAStreamReachesTheRecoveryInterceptor(t *testing.T) {
	handlers := service{talk: func(s grpc.BidiStreamingServer[shop.Order, shop.Receipt]) error {
		_, err := s.Recv()
		return err
	}}
	byRequest := grpclock.Rule{Key: "order:{req.order_id}"}
	observer := grpclock.WithObserve(func(context.Context, *grpclock.Problem) { panic("WithObserve") })
	for name, tc := range map[string]struct {
		rule    grpclock.Rule
		opts    []grpclock.Option
		inner   []grpc.StreamServerInterceptor
		refusal error // of the Locker
		want    string
	}{
		"KeyOf": {rule: grpclock.Rule{Func: skuOf}, want: "nil pointer"},
		"WithRule": {rule: byRequest, want: "WithRule",
			opts: []grpclock.Option{grpclock.WithRule(func(context.Context, string, any, *locker.Rule) { panic("WithRule") })}},
		"RecvMsg": {rule: grpclock.Rule{Key: "k"}, want: "RecvMsg", inner: []grpc.StreamServerInterceptor{
			func(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				return handler(server, receiving{s})
			}}},
		"WithObserve":              {rule: byRequest, want: "WithObserve", opts: []grpclock.Option{observer}, refusal: locker.ErrBusy},
		"WithObserve in an outage": {rule: byRequest, want: "WithObserve", opts: []grpclock.Option{observer, grpclock.WithFailOpen()}, refusal: locker.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			var l locker.Locker = lockertest.NewLocker(t, store)
			if tc.refusal != nil {
				l = lockerFunc(func(locker.Rule) error { return tc.refusal })
			}
			var recovered atomic.Pointer[any]
			client := serve(t, setup{
				locker: l, service: &handlers, opts: tc.opts,
				around: append([]grpc.StreamServerInterceptor{recovering(&recovered)}, tc.inner...),
				rules:  grpclock.FromMap(grpclock.RuleMap{shop.Shop_Talk_FullMethodName: tc.rule}),
			})
			s, err := client.Talk(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = s.Send(&shop.Order{OrderId: "42"}) // Send fails when the stream has ended already
			if err := firstOf(nil, s); status.Code(err) != codes.Internal || status.Convert(err).Message() != "recovered" {
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
