package quorum_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

var (
	reading = locker.Rule{Key: "a", Mode: locker.Shared}
	writing = locker.Rule{Key: "a"}
)

// patient returns r with Wait set to d.
func patient(r locker.Rule, d time.Duration) locker.Rule {
	r.Wait = d
	return r
}

// shelves makes n Lockers with readers on three servers, as if in n processes.
func shelves(t *testing.T, n int, opts ...locker.QuorumOption) (ls []*locker.Engine, servers []*redistest.Server) {
	t.Helper()
	servers = startNodes(t, 3)
	enroll(t, clients(clientsOf(t, servers)))
	for range n {
		l, err := readWriteOn(clients(clientsOf(t, servers)), opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := l.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		ls = append(ls, l)
	}
	return ls, servers
}

func TestReadersAndWritersOnAQuorum(t *testing.T) {
	t.Parallel()
	ls, servers := shelves(t, 3)
	lib := locktest.Visitors{Name: "p", Key: "visited", Readers: 8, Writers: 1, For: 3 * time.Second, Hold: 2 * time.Millisecond}
	var mu sync.Mutex
	var all []locktest.Visit
	var working sync.WaitGroup
	for i, l := range ls {
		lib := lib
		lib.Name = fmt.Sprint("p", i)
		working.Go(func() {
			more := lib.Run(l)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, more...)
		})
	}
	working.Wait()
	reads, writes, phases, overtaken := locktest.CheckVisits(t, all, true)
	t.Logf("%d reads with %d fences, %d writes; at most %d fences began while a writer waited", reads, phases, writes, overtaken)
	if reads < 30 || writes < 6 {
		t.Errorf("%d reads, %d writes", reads, writes)
	}
	for _, s := range servers {
		c := s.Client(t)
		eventually(t, "no process holds the key", func() bool {
			return c.Exists(t.Context(), "visited", redisstore.ReadersKey("visited")).Val() == 0
		})
	}
}

// Readers of other processes hold the key all the time. The writer gets the key nevertheless, and
// the readers get it again after the writer.
func TestReadersStarveNoWriterOnAQuorum(t *testing.T) {
	t.Parallel()
	ls, _ := shelves(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	var reads atomic.Int64
	for i := range 8 {
		working.Go(func() {
			<-time.After(time.Duration(i) * 3 * time.Millisecond)
			for ctx.Err() == nil {
				lease, err := ls[i%2].Acquire(ctx, reading)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				<-time.After(20 * time.Millisecond)
				if err := lease.Release(ctx); err != nil {
					t.Error(err)
				}
				reads.Add(1)
			}
		})
	}
	eventually(t, "they read", func() bool { return reads.Load() > 8 })
	for range 5 {
		before := reads.Load()
		within(t, 100*time.Millisecond, "the writer's grant", func() { release(t, acquire(t, ls[2], writing)) })
		eventually(t, "they read again", func() bool { return reads.Load() > before+8 })
	}
}

func TestADowngradeOnAQuorum(t *testing.T) {
	t.Parallel()
	ls, servers := shelves(t, 2)
	lease := acquire(t, ls[0], writing)
	if err := lease.Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := acquire(t, ls[1], reading)
	if r.Fence() < lease.Fence() { // it may be larger, if a node has not downgraded yet
		t.Errorf("fence %d beside %d", r.Fence(), lease.Fence())
	}
	_, err := ls[1].Acquire(t.Context(), patient(writing, locker.NoWait))
	wantErr(t, err, "a", locker.ErrBusy)
	w := asks(t, ls[1], writing)
	release(t, lease)
	w.WaitsStill()
	release(t, r)
	if got := w.Granted(time.Second); got.Fence() <= r.Fence() {
		t.Errorf("fence %d after %d", got.Fence(), r.Fence())
	} else {
		release(t, got)
	}
	for _, s := range servers {
		c := s.Client(t)
		eventually(t, "nothing is left", func() bool {
			return c.Exists(t.Context(), "a", redisstore.ReadersKey("a"), redisstore.QueueKey("a")).Val() == 0
		})
	}
}

// One of three nodes is stopped. Readers and writers continue on the other nodes, and still
// exclude each other.
func TestReadersAndWritersWhileANodeIsStopped(t *testing.T) {
	t.Parallel()
	ls, servers := shelves(t, 2)
	release(t, acquire(t, ls[0], reading))
	release(t, acquire(t, ls[1], writing))
	servers[0].Pause()
	defer servers[0].Resume()
	r := acquire(t, ls[0], reading)
	_, err := ls[1].Acquire(t.Context(), patient(writing, locker.NoWait))
	wantErr(t, err, "a", locker.ErrBusy)
	release(t, r)
	w := acquire(t, ls[1], writing)
	if w.Fence() <= r.Fence() {
		t.Errorf("fence %d after %d", w.Fence(), r.Fence())
	}
	_, err = ls[0].Acquire(t.Context(), patient(reading, locker.NoWait))
	wantErr(t, err, "a", locker.ErrBusy)
	release(t, w)
}

func TestABreakOnAQuorumThrowsAllReadersOut(t *testing.T) {
	t.Parallel()
	ls, _ := shelves(t, 2)
	rule := reading
	rule.TTL = 2 * time.Second
	readers := []*locker.Lease{acquire(t, ls[0], rule), acquire(t, ls[1], rule)}
	i, err := ls[0].Inspect(t.Context(), "a")
	if err != nil || i.Readers != 2 || i.Mode != locker.Shared || i.Fence != readers[1].Fence() {
		t.Fatalf("%+v %v, want two readers with fence %d", i, err, readers[1].Fence())
	}
	if err := ls[1].Revoke(t.Context(), "a", i.Fence, "drill"); err != nil {
		t.Fatal(err)
	}
	for _, r := range readers {
		lost(t, r, locker.ErrLost)
	}
	release(t, acquire(t, ls[0], writing))
}

// A waiting writer leaves an intent, which keeps readers out. After the writer has become a
// reader, the intent must not keep readers out any more.
func TestADowngradedWriterDoesNotKeepReadersOut(t *testing.T) {
	t.Parallel()
	ls, servers := shelves(t, 3)
	first := acquire(t, ls[0], writing)
	w := asks(t, ls[1], writing)
	cs := clientsOf(t, servers)
	eventually(t, "the second writer has left its intent where it has no vote", func() bool {
		n := int64(0)
		for _, c := range cs {
			n += c.Exists(t.Context(), redisstore.IntentKey("a")).Val()
		}
		return n >= 2
	})
	release(t, first)
	lease := w.Granted(5 * time.Second)
	if err := lease.Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := ls[2].Acquire(t.Context(), patient(reading, locker.NoWait))
	if err != nil {
		t.Fatalf("%v, although nobody writes and no caller waits to", err)
	}
	release(t, r)
	release(t, lease)
}
