package locker_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A full server refuses new leases, but serves the waiters in its queue. A full server must never publish a
// grant that it cannot store.
func TestAFullServerHandsOver(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	const key, each = "full", 5
	var ls []*locker.Engine
	for range 4 {
		ls = append(ls, newSingle(t, server.Client(t), locker.WithFair()))
	}
	first := acquire(t, ls[0], locker.Rule{Key: key})
	var mu sync.Mutex
	var fences []uint64
	var inside atomic.Int32
	var wg sync.WaitGroup
	for _, l := range ls {
		for range each {
			w := asks(t, l, locker.Rule{Key: key, Wait: stuckAfter})
			wg.Go(func() {
				if <-w.Done; w.Err != nil {
					t.Error(w.Err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d are inside", n)
				}
				mu.Lock()
				fences = append(fences, w.Lease.Fence())
				mu.Unlock()
				<-time.After(5 * time.Millisecond)
				inside.Add(-1)
				if err := w.Lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	eventually(t, "all expected waiters wait at the server", func() bool { return inLine(t, client, key) == len(ls)*each })
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := ls[1].Acquire(t.Context(), locker.Rule{Key: "more"})
	wantErr(t, err, "more", locker.ErrUnavailable)
	refused := client.Set(t.Context(), "control", 1, 0).Err()
	if refused == nil || !strings.HasPrefix(refused.Error(), "OOM") {
		t.Fatalf("positive control: the server is not full: %v", refused)
	}
	release(t, first)
	wg.Wait()
	if len(fences) != len(ls)*each || !slices.IsSorted(append([]uint64{first.Fence()}, fences...)) || len(slices.Compact(fences)) != len(ls)*each {
		t.Errorf("%d fences, first %d, then %v", len(fences), first.Fence(), fences)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, ls[1], locker.Rule{Key: "more"}))
	nothingLeftBut(t, client)
}

// When a server loses its data, its queue is lost, too. A waiter notices this loss and queues
// again. Then the waiter gets its lease, or its wait ends with an error. The holder learns that
// its lease is lost, and the fences continue to grow.
func TestARestartedServerServesAllWhoWaited(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	var ls []*locker.Engine
	for range 3 {
		ls = append(ls, newSingle(t, server.Client(t)))
	}
	for n := range 2 {
		key := fmt.Sprint("restart:", n)
		holder := acquire(t, ls[0], locker.Rule{Key: key, TTL: 2 * time.Second})
		var waiting []*pending
		for i, l := range ls {
			waiting = append(waiting,
				queues(t, l, locker.Rule{Key: key, TTL: time.Duration(20+i) * time.Second}, client),
				asks(t, l, locker.Rule{Key: key, TTL: time.Duration(20+i) * time.Second}),
				queues(t, l, locker.Rule{Key: key, TTL: time.Duration(30+i) * time.Second, Wait: 300 * time.Millisecond}, client))
		}
		server.Restart()
		lost(t, holder, locker.ErrLost)
		fences := []uint64{holder.Fence()}
		start := time.Now()
		for len(waiting) > 0 {
			eventually(t, "the next is served", func() bool { return slices.ContainsFunc(waiting, (*pending).Over) })
			i := slices.IndexFunc(waiting, (*pending).Over)
			w := waiting[i]
			waiting = slices.Delete(waiting, i, i+1)
			if w.Err != nil {
				if w.Rule.Wait == 0 || !errors.Is(w.Err, locker.ErrBusy) && !errors.Is(w.Err, locker.ErrUnavailable) {
					t.Error(w.Err)
				}
				continue
			}
			if slices.ContainsFunc(waiting, func(p *pending) bool { return p.Over() && p.Err == nil }) {
				t.Error("two hold the key")
			}
			fences = append(fences, w.Lease.Fence())
			release(t, w.Lease)
		}
		if !slices.IsSorted(fences) || len(slices.Compact(fences)) != len(fences) || len(fences) < 7 {
			t.Errorf("fences %v", fences)
		}
		t.Logf("all were served %v after the holder had learned of the loss", time.Since(start))
	}
	nothingLeftBut(t, server.Client(t), "latchkit:x:")
}
