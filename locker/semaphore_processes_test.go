package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/locker"
)

// permitProcess is a process that holds units of a key until its parent stops it.
var permitProcess = proc.Register("permit", func(args []string) {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		panic(err)
	}
	weight, err := strconv.Atoi(args[3])
	if err != nil {
		panic(err)
	}
	l, err := locker.NewSemaphore(redis.NewClient(&redis.Options{Addr: args[0]}), 3)
	if err != nil {
		panic(err)
	}
	lease, err := l.Acquire(context.Background(), locker.Rule{Key: args[1], TTL: ttl, Weight: weight})
	if err != nil {
		panic(err)
	}
	fmt.Println("granted", lease.Fence())
	asked := make(chan struct{})
	go func() {
		proc.Listen()
		close(asked)
		proc.Listen()
	}()
	select {
	case <-lease.Context().Done():
		fmt.Println("lost", errors.Is(context.Cause(lease.Context()), locker.ErrLost))
	case <-asked:
		fmt.Println("released", lease.Release(context.Background()))
	}
	select {} // proc.Listen ends the process
})

// When a process with units dies or is stopped, a waiter gets these units when the permit of the
// process expires. Other holders are not affected.
func TestASignalToAHolderOfUnits(t *testing.T) {
	forEachSignal(t, func(t *testing.T, p *peers, signal string, strike func(*proc.Child)) {
		sem := newSemaphore(t, p.server.Client(t), 3)
		alive := acquire(t, sem, locker.Rule{Key: p.key})
		child := permitProcess.Start(t, p.server.Addr(), p.key, "2s", "2")
		p.awaitGrant(child)
		w := queues(t, sem, locker.Rule{Key: p.key, Weight: 2}, p.client)
		strike(child)
		var next *locker.Lease
		within(t, 3*time.Second, "the waiter's grant", func() { next = w.Granted(3 * time.Second) })
		if err := context.Cause(alive.Context()); err != nil {
			t.Fatal(err)
		}
		if signal == "stopped" {
			child.Resume()
			if got := child.Expect(t, "lost"); got != "true" {
				t.Fatalf("its lease ended with ErrLost: %s", got)
			}
		}
		if info, err := sem.Inspect(t.Context(), p.key); err != nil || info.Used != 3 {
			t.Fatalf("%+v %v", info, err)
		}
		release(t, alive)
		release(t, next)
		nothingLeftBut(t, p.client)
	})
}

// The process of the queue's head is stopped. The other waiters are delayed only by the time for
// which the server keeps units for the head.
func TestASignalToAWaiterForUnits(t *testing.T) {
	forEachSignal(t, func(t *testing.T, p *peers, _ string, strike func(*proc.Child)) {
		sem := newSemaphore(t, p.server.Client(t), 3)
		one, two := acquire(t, sem, locker.Rule{Key: p.key}), acquire(t, sem, locker.Rule{Key: p.key, Weight: 2})
		child := permitProcess.Start(t, p.server.Addr(), p.key, "30s", "3")
		eventually(t, "the process waits", func() bool { return inLine(t, p.client, p.key) == 1 })
		light := queues(t, sem, locker.Rule{Key: p.key}, p.client)
		strike(child)
		release(t, two) // now some units are free, but too few for the head, which does not react
		var lease *locker.Lease
		within(t, 6*time.Second, "the light waiter's grant", func() { lease = light.Granted(6 * time.Second) })
		release(t, lease)
		release(t, one)
	})
}
