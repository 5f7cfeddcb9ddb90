package locker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// After waits of all kinds, only the fence counters are left, and no other key, no channel and no
// goroutine. A caller that gives up while a call is under way may leave a tombstone, which expires.
// No other caller leaves a tombstone. The test is not parallel, because it looks at all goroutines.
func TestAfterAllWaitsNothingIsLeft(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	eventually(t, "no goroutine of another test is left", func() bool { return len(goroutines()) == 0 })
	var ls []*locker.Engine
	for i := range 4 {
		var opts []locker.SingleOption
		if i%2 == 0 {
			opts = append(opts, locker.WithFair())
		}
		l, err := locker.New(server.Client(t), opts...)
		if err != nil {
			t.Fatal(err)
		}
		ls = append(ls, l)
	}
	keys := func(pattern string) int { return len(client.Keys(t.Context(), pattern).Val()) }
	for round := range 12 {
		key := fmt.Sprint("quiet:", round%3)
		holder := acquire(t, ls[round%4], locker.Rule{Key: key})
		var served, gone []*pending
		for i, l := range ls {
			// The waiters of a process have different TTLs, so that they form no cohort and all
			// are in the server's queue.
			served = append(served, queues(t, l, locker.Rule{Key: key, TTL: time.Duration(20+i) * time.Second}, client))
			if round < 6 {
				continue
			}
			gone = append(gone, queues(t, l, locker.Rule{Key: key, TTL: time.Duration(30+i) * time.Second, Wait: 100 * time.Millisecond}, client))
			gone = append(gone, queues(t, l, locker.Rule{Key: key, TTL: time.Duration(40+i) * time.Second}, client))
			gone[len(gone)-1].Cancel()
			eventually(t, "they have left the queue", func() bool { return inLine(t, client, key) == i+1 })
		}
		for _, w := range gone {
			if <-w.Done; w.Err == nil {
				t.Error("it was served")
			}
		}
		release(t, holder)
		for _, w := range served {
			release(t, w.Granted(0))
		}
		if round < 6 {
			nothingLeftBut(t, client)
		}
	}
	nothingLeftBut(t, client, "latchkit:x:")
	if n := keys("latchkit:f:*"); n == 0 || n > 3 {
		t.Errorf("%d fence counters for three keys", n)
	}
	if n := len(client.PubSubChannels(t.Context(), "*").Val()); n != len(ls) {
		t.Errorf("positive control: %d channels for %d processes", n, len(ls))
	}
	if len(goroutines()) == 0 {
		t.Error("positive control: no goroutine can be seen")
	}
	for _, l := range ls {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
	eventually(t, "the goroutines are gone", func() bool { return len(goroutines()) == 0 })
	eventually(t, "the channels are gone", func() bool { return len(client.PubSubChannels(t.Context(), "*").Val()) == 0 })
	nothingLeftBut(t, client, "latchkit:x:")
}
