package lockertest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A lease is lost during the work: the context of the work ends, and Run returns ErrLost.
func Example() {
	memory := lockertest.NewMemory()
	l, err := memory.NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	rule := locker.Rule{Key: "order:42", TTL: 100 * time.Millisecond}
	err = locker.Run(ctx, l, rule, func(ctx context.Context) error {
		memory.Steal("order:42") // as if this process had been paused for longer than its TTL
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println("lost:", errors.Is(err, locker.ErrLost))
	// Output:
	// lost: true
}

// Two processes of a service share one lock server. One of them is killed while it holds the key.
func ExampleMemory_NewProcess() {
	memory := lockertest.NewMemory()
	killed := memory.NewProcess()
	one, err := killed.NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	other, err := memory.NewProcess().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	rule := locker.Rule{Key: "order:42", TTL: 100 * time.Millisecond, Wait: time.Minute}
	if _, err := one.Acquire(ctx, rule); err != nil {
		log.Fatal(err)
	}
	killed.Die()
	err = locker.Run(ctx, other, rule, func(context.Context) error {
		fmt.Println("the other process works after the TTL")
		return nil
	})
	fmt.Println(err)
	// Output:
	// the other process works after the TTL
	// <nil>
}

// A Recorder is an Observer that remembers how each operation ended.
func ExampleRecorder() {
	var recorder lockertest.Recorder
	l, err := lockertest.NewMemory().NewLocker(locker.WithObserver(&recorder))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	lease, err := l.Acquire(ctx, locker.Rule{Key: "order:42"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = l.Acquire(ctx, locker.Rule{Key: "order:42", Wait: locker.NoWait})
	fmt.Println("busy:", errors.Is(err, locker.ErrBusy))
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	for _, r := range recorder.Records(locker.OpAcquire, locker.OpRelease) {
		fmt.Println(r.Op, r.Rule.Name, r.Outcome.Result)
	}
	// Output:
	// busy: true
	// acquire order acquired
	// acquire order busy
	// release order released
}
