package idempotency_test

import (
	"context"
	"fmt"
	"log"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/key"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A payment runs once, although the client sends it twice with the same key. The second request
// gets the answer of the first.
func Example() {
	l, err := lockertest.NewMemory().NewLocker() // or locker.New
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(context.Background())
	keeper := idempotency.Keeper{Locker: l, Store: idempotency.NewMemory()} // or NewRedis
	request := idempotency.Request{
		Rule:    locker.Rule{Key: key.Of("idempotency", "customer-7", "5f2c")},
		Content: [][]byte{[]byte("POST /payments"), []byte(`{"amount":10}`)},
	}
	for range 2 {
		answer, err := keeper.Do(context.Background(), request, func(context.Context) idempotency.Outcome {
			fmt.Println("10 EUR are charged")
			return idempotency.Outcome{
				Response: idempotency.Response{Status: 201, Body: []byte("payment 1")}, Keep: true,
			}
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s, replayed: %v\n", answer.Response.Status, answer.Response.Body, answer.Replayed)
	}
	// Output:
	// 10 EUR are charged
	// 201 payment 1, replayed: false
	// 201 payment 1, replayed: true
}
