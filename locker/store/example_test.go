package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/store"
)

// inMaintenance is a Store whose server takes no new leases for now.
type inMaintenance struct{ store.Store }

func (inMaintenance) Acquire(context.Context, store.Claim) (store.Grant, error) {
	return store.Grant{}, &store.Refusal{Err: errors.New("the server is in maintenance")}
}

// A Refusal proves that a step had no effect, so the Engine has nothing to undo. After any other
// error, the step may have run, so the Engine releases the token.
func ExampleRefusal() {
	l, err := locker.NewFromStore(inMaintenance{lockertest.NewMemory()})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(context.Background())
	_, err = l.Acquire(context.Background(), locker.Rule{Key: "order:42"})
	fmt.Println(errors.Is(err, locker.ErrUnavailable), errors.Is(err, locker.ErrBusy))
	// Output: true false
}
