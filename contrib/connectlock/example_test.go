package connectlock_test

import (
	"context"
	"fmt"
	"log"

	"connectrpc.com/connect"

	"github.com/latchkit/latchkit/contrib/connectlock"
	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// This interceptor is for handlers whose .proto file names their locks.
func Example() {
	l, err := locker.NewFromStore(lockertest.NewMemory()) // in production locker.New, with a client of Redis
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	rules := grpclock.FromDescriptors()
	locks, err := connectlock.NewInterceptor(l, rules)
	if err != nil {
		log.Fatal(err)
	}
	err = rules.Bind(connectlock.Services("latchkit.shop.v1.Shop")) // finds mistakes in the rules at start-up
	fmt.Println("mistakes:", err)
	_ = connect.WithInterceptors(locks) // an option of the generated NewShopHandler
	// Output:
	// mistakes: <nil>
}
