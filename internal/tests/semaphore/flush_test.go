package semaphore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A server that is emptied forgets its permits. New holders get units while the old holders still
// use their units. The old holders learn of the loss at their next renewal. A waiter also gets
// its unit, because it asks again although the server has forgotten its place.
func TestPermitsThatTheServerForgot(t *testing.T) {
	t.Parallel()
	const n, ttl = 3, 3 * time.Second
	server := redistest.Start(t)
	client := server.Client(t)
	process := func() *locker.Engine { return locktest.Semaphore(t, server.Client(t), n, locker.WithTTL(ttl)) }
	former, waits, fresh := process(), process(), process()
	heavy := locktest.Acquire(t, former, locker.Rule{Key: "units", Weight: 2})
	light := locktest.Acquire(t, former, locker.Rule{Key: "units"})
	waiter := locktest.Queues(t, waits, locker.Rule{Key: "units"}, client)

	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	lease := locktest.Acquire(t, fresh, locker.Rule{Key: "units", Weight: 2, Wait: locker.NoWait})
	if former := max(heavy.Fence(), light.Fence()); lease.Fence() <= former {
		t.Errorf("fence %d after %d", lease.Fence(), former)
	}
	locktest.Within(t, ttl*37/100, "the old holders learn of it", func() {
		for _, l := range []*locker.Lease{heavy, light} {
			locktest.Eventually(t, "the lease is lost", func() bool { return errors.Is(context.Cause(l.Context()), locker.ErrLost) })
		}
	})
	// together with the two units of lease, all n units are now held
	third := waiter.Granted(5 * time.Second)
	if info, err := fresh.Inspect(t.Context(), "units"); err != nil || info.Used != n {
		t.Errorf("%+v, %v", info, err)
	}
	for _, l := range []*locker.Lease{heavy, light} { // the release of a lost permit must take nothing from the new holders
		if err := l.Release(t.Context()); !errors.Is(err, locker.ErrLost) {
			t.Errorf("release after the loss: %v", err)
		}
	}
	if _, err := former.Acquire(t.Context(), locker.Rule{Key: "units", Wait: locker.NoWait}); !errors.Is(err, locker.ErrBusy) {
		t.Errorf("a unit too many: %v", err)
	}
	locktest.Release(t, lease)
	locktest.Release(t, third)
	locktest.NothingLeftBut(t, client)
}

// holders has the leases whose callers have called enter, and not yet leave. A lease counts as
// held until its context ends or its deadline passes.
type holders struct {
	mu     sync.Mutex
	units  map[*locker.Lease]int
	flush  time.Time // when the server was last emptied
	fences []uint64
	most   int // the largest number of units that were held at once
	// how often more than n units were held at a time when each old holder must have noticed
	// the flush
	excess int
}

func (h *holders) enter(l *locker.Lease, n int, noticeTime time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.units[l] = l.Units()
	h.fences = append(h.fences, l.Fence())
	used := 0
	for l, units := range h.units {
		if l.Context().Err() == nil && time.Now().Before(l.Expires()) {
			used += units
		}
	}
	h.most = max(h.most, used)
	if used > n && time.Since(h.flush) > noticeTime {
		h.excess++
	}
}

// exceeded reports whether more than n units were held at once.
func (h *holders) exceeded(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most > n
}

func (h *holders) leave(l *locker.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.units, l)
}

// The test flushes the server while many callers take units. After a flush, new holders may
// have n units while old holders still use n units, but only until the old holders notice the
// loss at their next renewal.
func TestFlushesUnderLoad(t *testing.T) {
	t.Parallel()
	// the test flushes between least and most times
	const n, ttl, least, most = 4, 2 * time.Second, 4, 20
	server := redistest.Start(t)
	client := server.Client(t)
	h := &holders{units: make(map[*locker.Lease]int)}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range 3 {
		l := locktest.Semaphore(t, server.Client(t), n, locker.WithTTL(ttl))
		for range 4 {
			work.Go(func() {
				for ctx.Err() == nil {
					lease, err := l.Acquire(ctx, locker.Rule{Key: "units", Weight: 1 + rand.IntN(2)})
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					h.enter(lease, n, ttl/2)
					select {
					case <-time.After(rand.N(ttl / 2)):
					case <-lease.Context().Done():
					}
					h.leave(lease)
					if err := lease.Release(context.Background()); err != nil && !errors.Is(err, locker.ErrLost) {
						t.Error(err)
					}
				}
			})
		}
	}
	for i := 0; i < least || i < most && !h.exceeded(n); i++ {
		time.Sleep(ttl) //nolint:forbidigo // the time between faults
		h.mu.Lock()
		h.flush = time.Now()
		err := client.FlushAll(t.Context()).Err()
		h.mu.Unlock()
		if err != nil {
			t.Error(err)
		}
	}
	time.Sleep(ttl) //nolint:forbidigo // the time between faults
	stop()
	work.Wait()
	if h.excess > 0 || h.most > 2*n {
		t.Errorf("%d entries beside too many units; %d units at most", h.excess, h.most)
	}
	if h.most <= n {
		t.Errorf("positive control: no flush admitted anybody; %d units at most", h.most)
	}
	slices.Sort(h.fences)
	if unique := len(slices.Compact(slices.Clone(h.fences))); unique != len(h.fences) {
		t.Errorf("%d fences of %d holders", unique, len(h.fences))
	}
	locktest.NothingLeftBut(t, client, "latchkit:x:") // what stop cancels may leave a tombstone
}
