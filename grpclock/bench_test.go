package grpclock_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// BenchmarkCall compares three calls on the Store in memory, without a network: a guarded call, a
// call whose handler calls Run itself, and a call without a lock.
func BenchmarkCall(b *testing.B) {
	l := lockertest.NewLocker(b, lockertest.NewMemory())
	order := &shop.Order{OrderId: "42", Item: &shop.Item{Sku: "screw"}}
	var server any = &service{}
	done := &shop.Receipt{}
	guarded := func(rules *grpclock.Rules) grpc.UnaryServerInterceptor {
		unary, err := grpclock.UnaryServerInterceptor(l, rules)
		if err != nil {
			b.Fatal(err)
		}
		if err := rules.Bind(theShop); err != nil {
			b.Fatal(err)
		}
		return unary
	}
	for _, bm := range []struct {
		name   string
		method string
		unary  grpc.UnaryServerInterceptor
	}{
		{"no lock", shop.Shop_Place_FullMethodName, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return handler(ctx, req)
		}},
		{"Run in the handler", shop.Shop_Place_FullMethodName, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			rule := locker.Rule{Key: "order:" + req.(*shop.Order).GetOrderId(), Name: "order", Wait: locker.NoWait}
			err = locker.Run(ctx, l, rule, func(ctx context.Context) (err error) { resp, err = handler(ctx, req); return err })
			return resp, err
		}},
		{"grpclock", shop.Shop_Place_FullMethodName, guarded(grpclock.FromDescriptors())},
		{"grpclock, no rule", shop.Shop_Read_FullMethodName, guarded(grpclock.FromDescriptors())},
		{"grpclock, a function", shop.Shop_Place_FullMethodName, guarded(grpclock.FromMap(grpclock.RuleMap{
			shop.Shop_Place_FullMethodName: {Func: grpclock.KeyOf(func(o *shop.Order) string { return "order:" + o.GetOrderId() }), Wait: locker.NoWait},
		}))},
	} {
		b.Run(bm.name, func(b *testing.B) {
			info := &grpc.UnaryServerInfo{FullMethod: bm.method, Server: server}
			handler := func(context.Context, any) (any, error) { return done, nil }
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bm.unary(b.Context(), order, info, handler); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRefusal measures the reply to a call whose lock is busy.
func BenchmarkRefusal(b *testing.B) {
	unary, err := grpclock.UnaryServerInterceptor(lockerFunc(func(locker.Rule) error { return locker.ErrBusy }), grpclock.FromDescriptors())
	if err != nil {
		b.Fatal(err)
	}
	info := &grpc.UnaryServerInfo{FullMethod: shop.Shop_Place_FullMethodName, Server: &service{}}
	order := &shop.Order{OrderId: "42"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := unary(b.Context(), order, info, nil); err == nil {
			b.Fatal("not refused")
		}
	}
}
