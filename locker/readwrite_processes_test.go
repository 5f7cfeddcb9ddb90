package locker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/locker"
)

// readerProcess holds a key as a reader until its parent stops it.
var readerProcess = proc.Register("reader", func(args []string) {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		panic(err)
	}
	l, err := locker.NewReadWrite(redis.NewClient(&redis.Options{Addr: args[0]}))
	if err != nil {
		panic(err)
	}
	lease, err := l.Acquire(context.Background(), locker.Rule{Key: args[1], Mode: locker.Shared, TTL: ttl})
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

// When a process with readers dies or is stopped, a writer must wait until the lease of this
// process has expired. Readers of other processes are not delayed.
func TestASignalToAReader(t *testing.T) {
	forEachSignal(t, func(t *testing.T, p *peers, signal string, strike func(*proc.Child)) {
		rw := newReadWrite(t, p.server.Client(t))
		shared := locker.Rule{Key: p.key, Mode: locker.Shared}
		alive := acquire(t, rw, shared)
		child := readerProcess.Start(t, p.server.Addr(), p.key, "2s")
		fence := p.awaitGrant(child)
		if fence != alive.Fence() {
			t.Fatalf("fence %d beside %d", fence, alive.Fence())
		}
		w := queues(t, newReadWrite(t, p.server.Client(t)), locker.Rule{Key: p.key}, p.client)
		strike(child)
		<-time.After(2200 * time.Millisecond)
		w.WaitsStill() // one of the readers is alive
		if err := context.Cause(alive.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, alive)
		var written *locker.Lease
		within(t, 0, "the writer's grant", func() { written = w.Granted(0) })
		if signal == "stopped" {
			child.Resume()
			if got := child.Expect(t, "lost"); got != "true" {
				t.Fatalf("its lease ended with ErrLost: %s", got)
			}
			if err := context.Cause(written.Context()); err != nil {
				t.Fatal(err)
			}
		}
		release(t, written)
		nothingLeftBut(t, p.client)
	})
}
