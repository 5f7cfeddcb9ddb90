package locker_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func ExampleRunAll() {
	l, err := lockertest.NewMemory().NewLocker() // in a service: New
	if err != nil {
		log.Fatal(err)
	}
	accounts := []locker.Rule{{Key: "account:7", Wait: time.Second}, {Key: "account:3", Wait: time.Second}}
	err = locker.RunAll(context.Background(), l, accounts, func(ctx context.Context) error {
		for _, lease := range locker.LeasesFromContext(ctx) {
			fmt.Println(lease.Key(), "is mine")
		}
		return nil // move the money; ctx ends if one of the locks is lost
	})
	if err != nil {
		log.Fatal(err) // names the account that could not be locked; the other account is free again
	}
	// Output:
	// account:7 is mine
	// account:3 is mine
}

// One function locks the order and then an item, another one the item and then its order. Each of
// them works alone. Together they can wait for each other for ever, on a bad day. In a test, give
// lockertest.Order(t) instead, which fails the test.
func ExampleWithOrderCheck() {
	check := locker.WithOrderCheck(func(conflict string) {
		for line := range strings.Lines(conflict) { // in a service: slog.Warn(conflict)
			if strings.Contains(line, "was acquired while") { // the other lines are the stacks
				fmt.Print(line)
			}
		}
	})
	l, err := lockertest.NewMemory().NewLocker(check) // in a service: New
	if err != nil {
		log.Fatal(err)
	}
	lockBoth := func(outer, inner string) {
		err := locker.Run(context.Background(), l, locker.Rule{Key: outer}, func(ctx context.Context) error {
			return locker.Run(ctx, l, locker.Rule{Key: inner}, func(context.Context) error { return nil })
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	lockBoth("order:42", "item:7") // the sale
	lockBoth("item:8", "order:43") // the return, on another day
	// Output:
	// order:43 (order) was acquired while item:8 (item) was held:
	// item:7 (item) was acquired while order:42 (order) was held:
}

func ExampleNewReentrant() {
	e, err := lockertest.NewMemory().NewLocker() // in a service: New
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.NewReentrant(e)
	if err != nil {
		log.Fatal(err)
	}
	order := locker.Rule{Key: "order:42"}
	pay := func(ctx context.Context) error { // takes its own lock, for any caller
		return locker.Run(ctx, l, order, func(context.Context) error {
			fmt.Println("paid")
			return nil
		})
	}
	if err := locker.Run(context.Background(), l, order, pay); err != nil { // ctx carries the hold that lets pay enter
		log.Fatal(err)
	}
	// Output: paid
}

func ExampleNewStriped() {
	e, err := lockertest.NewMemory().NewLocker() // in a service: New
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.NewStriped(e, 1024)
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Run(context.Background(), l, locker.Rule{Key: "visitor:7f3a"}, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		fmt.Println(lease.Key())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: visitor:7f3a
}

func ExampleNewScriptless() {
	// The user of this server must not run scripts.
	l, err := locker.NewScriptless(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	_ = locker.Run(context.Background(), l, locker.Rule{Key: "order:42", Wait: time.Second}, ship)
}
