package locker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// These are tests of readers and writers on real servers.

func TestNewReadWriteRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	if _, err := locker.NewReadWrite(nil); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Error(err)
	}
	ring := redis.NewRing(&redis.RingOptions{})
	defer func() { _ = ring.Close() }()
	if _, err := locker.NewReadWrite(ring); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Error(err)
	}
}

// The lock is the key itself. So readers and writers on one side, and any other library that locks
// the key on the other side, exclude each other.
func TestReadersAndOtherLockers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	rw, single := newReadWrite(t, server.Client(t)), newSingle(t, server.Client(t))
	other := newReadWrite(t, server.Client(t)) // its readers share no lease with the readers of rw
	key := locker.Rule{Key: "mixed"}
	shared := locker.Rule{Key: "mixed", Mode: locker.Shared}

	lease := acquire(t, rw, shared)
	if client.SetNX(t.Context(), key.Key, "foreign", time.Minute).Val() {
		t.Fatal("another library took what readers hold")
	}
	w := queues(t, single, key, client)
	late := queues(t, other, shared, client)
	release(t, lease)
	writer := w.Granted(0)
	if writer.Fence() <= lease.Fence() {
		t.Fatalf("fence %d after %d", writer.Fence(), lease.Fence())
	}
	late.WaitsStill()
	// When a Locker without readers releases the key, it hands the key to only one owner. So this
	// reader has the key alone.
	release(t, writer)
	reader := late.Granted(0)
	if reader.Fence() <= writer.Fence() || reader.Mode() != locker.Shared {
		t.Fatalf("%v, fence after %d", reader, writer.Fence())
	}
	if err := reader.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	w = queues(t, single, key, client)
	second := queues(t, rw, shared, client) // not in the Locker other, whose readers have a phase of their own
	release(t, reader)
	release(t, second.Granted(0)) // after a holder that had the key alone, like a writer, it is the readers' turn
	release(t, w.Granted(0))

	if !client.SetNX(t.Context(), key.Key, "foreign", time.Second).Val() {
		t.Fatal("the key is not free")
	}
	_, err := rw.Acquire(t.Context(), locker.Rule{Key: "mixed", Mode: locker.Shared, Wait: locker.NoWait})
	wantErr(t, err, "mixed", locker.ErrBusy)
	release(t, acquire(t, rw, shared)) // granted when the foreign lease has expired
	nothingLeftBut(t, client)
}

func TestAfterReadersAndWritersNothingIsLeft(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	ls := []*locker.Engine{newReadWrite(t, server.Client(t)), newReadWrite(t, server.Client(t)), newReadWrite(t, server.Client(t), locker.WithFair())}
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for n := range 30 {
				rule := locker.Rule{Key: fmt.Sprint("left:", n%3), Mode: locker.Mode((i + n) % 2), Wait: time.Duration(n%4) * 10 * time.Millisecond}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+n)*time.Millisecond)
				lease, err := ls[i%3].Acquire(ctx, rule)
				if err == nil {
					release(t, lease)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for _, l := range ls {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
	nothingLeftBut(t, client, "latchkit:x:")
}

func TestAFullServerLetsReadersGoAndNoneIn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	one, other := newReadWrite(t, server.Client(t)), newReadWrite(t, server.Client(t))
	shared := locker.Rule{Key: "full", Mode: locker.Shared, TTL: 3 * time.Second}
	lease := acquire(t, one, shared)
	w := queues(t, other, locker.Rule{Key: "full"}, client)
	client.ConfigSet(t.Context(), "maxmemory", "1")
	defer client.ConfigSet(context.Background(), "maxmemory", "0")
	_, err := other.Acquire(t.Context(), locker.Rule{Key: "empty", Mode: locker.Shared})
	wantErr(t, err, "empty", locker.ErrUnavailable)
	renewed := lease.Expires()
	eventually(t, "it is renewed", func() bool { return lease.Expires().After(renewed) })
	release(t, lease)
	release(t, w.Granted(0))
	_, err = one.Acquire(t.Context(), shared)
	wantErr(t, err, "full", locker.ErrUnavailable)
}
