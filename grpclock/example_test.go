package grpclock_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func Example() {
	l, err := locker.Open("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	service := &service{}
	rules := grpclock.FromDescriptors()
	options, err := grpclock.ServerOptions(l, rules)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(options...)
	shop.RegisterShopServer(server, service)
	if err := rules.Bind(server); err != nil {
		log.Fatal(err) // a rule that makes no sense, by the name of its method
	}
}

// Rules in Go are for services whose .proto file you cannot change.
func ExampleFromMap() {
	rules := grpclock.FromMap(grpclock.RuleMap{
		shop.Shop_Place_FullMethodName: {Key: "order:{req.order_id}", Wait: locker.NoWait},
		shop.Shop_Read_FullMethodName:  {Key: "order:{req.order_id}", Mode: locker.Shared},
		shop.Shop_Move_FullMethodName:  {Func: grpclock.KeyOf(func(o *shop.Order) string { return "sku:" + o.GetItem().GetSku() }), Name: "sku"},
	})
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	options, err := grpclock.ServerOptions(l, rules)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(options...)
	shop.RegisterShopServer(server, &service{})
	if err := rules.Bind(server); err != nil {
		log.Fatal(err)
	}
	fmt.Println("without a lock:", len(rules.Unguarded()), "methods")
	// Output:
	// without a lock: 6 methods
}
