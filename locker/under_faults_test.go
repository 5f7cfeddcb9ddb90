package locker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// trouble causes one fault of the Store or of one process. A test calls it again and again.
type trouble func(m *lockertest.Memory, p *lockertest.Process, r *rand.Rand)

var troubles = map[string]trouble{
	"nothing":          func(*lockertest.Memory, *lockertest.Process, *rand.Rand) {},
	"answers are lost": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) { m.LoseReplies(anyOp(r), 1+r.IntN(3)) },
	"answers are late": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		m.DelayReplies(anyOp(r), upTo(r, 300*time.Millisecond))
	},
	"calls are late": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		m.Delay(anyOp(r), upTo(r, 3*time.Second))
	},
	"messages are lost": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Lose: 1 + r.IntN(5)})
	},
	"messages are late": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Delay: upTo(r, 4*time.Second)})
	},
	"messages come twice": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Repeat: r.IntN(2) == 0})
	},
	"processes are deaf": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Deaf: r.IntN(2) == 0})
	},
	"connections hang": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Pause()
		time.AfterFunc(upTo(r, 4*time.Second), p.Resume)
	},
	"another library takes the key": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		if m.Len() == 0 {
			m.Occupy("k", upTo(r, time.Second))
		}
	},
	"the network is bad": func(m *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		for _, op := range []locker.Op{locker.OpAcquire, locker.OpRenew, locker.OpRelease} {
			m.Delay(op, upTo(r, []time.Duration{100 * time.Millisecond, 6 * time.Second}[r.IntN(2)]))
			m.DelayReplies(op, upTo(r, 2*time.Second))
			m.LoseReplies(op, r.IntN(10))
		}
		p.Disturb(lockertest.EventFaults{Delay: upTo(r, time.Second), Lose: r.IntN(3)})
	},
	"processes die": func(_ *lockertest.Memory, p *lockertest.Process, _ *rand.Rand) { p.Die() },
	"the server forgets": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		if r.IntN(20) == 0 {
			m.Wipe()
		}
	},
	"the server's clock steps": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		m.StepClock(upTo(r, 4*time.Second) - 2*time.Second)
	},
}

// mayOverlap has the faults after which two may hold a key for a while: docs/guarantees.md.
var mayOverlap = map[string]bool{"the server forgets": true, "the server's clock steps": true}

func anyOp(r *rand.Rand) locker.Op {
	return []locker.Op{locker.OpAcquire, locker.OpRenew, locker.OpRelease}[r.IntN(3)]
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// troubledLock is a kind of lock. A holder uses units, and all holders together at most limit: of
// readers and a writer, the writer uses all.
type troubledLock struct {
	limit     int
	options   []locker.Option
	rule      func(r *rand.Rand) (rule locker.Rule, units int)
	unordered bool // a holder may have a smaller fence than an earlier holder
}

var troubledLocks = map[string]troubledLock{
	"one holder":    {limit: 1, rule: func(*rand.Rand) (locker.Rule, int) { return locker.Rule{}, 1 }},
	"one in turn":   {limit: 1, options: []locker.Option{locker.WithFair()}, rule: func(*rand.Rand) (locker.Rule, int) { return locker.Rule{}, 1 }},
	"without queue": {limit: 1, options: []locker.Option{locker.WithoutQueue()}, rule: func(*rand.Rand) (locker.Rule, int) { return locker.Rule{}, 1 }},
	"readers and a writer": {limit: 100, rule: func(r *rand.Rand) (locker.Rule, int) {
		if r.IntN(3) == 0 {
			return locker.Rule{}, 100
		}
		return locker.Rule{Mode: locker.Shared}, 1
	}},
	"units": {limit: 4, unordered: true, rule: func(r *rand.Rand) (locker.Rule, int) {
		units := []int{4, 2, 2, 1, 1, 1, 1, 1, 1, 1}[r.IntN(10)]
		return locker.Rule{Limit: 4, Weight: units}, units
	}},
}

// holdings has the units of all leases that are held, and what was wrong.
type holdings struct {
	troubledLock
	mu       sync.Mutex
	byLease  map[*locker.Lease]int
	newest   uint64 // the largest fence
	excesses int
	unsorted int
}

func (h *holdings) enter(l *locker.Lease, units int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byLease[l] = units
	used := 0
	for l, units := range h.byLease {
		if time.Now().Before(l.Expires()) && l.Context().Err() == nil {
			used += units
		}
	}
	if used > h.limit {
		h.excesses++
	}
	if l.Fence() < h.newest || h.limit == 1 && l.Fence() == h.newest {
		h.unsorted++
	}
	h.newest = max(h.newest, l.Fence())
}

func (h *holdings) leave(l *locker.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byLease, l)
}

// Callers of three processes want one key, their contexts end at any moment, and there are faults
// all the time. No two hold the key at once, or more units than there are, fences grow, no caller is
// stuck, and at the end nothing is left.
func TestLocksOfEachKindUnderEachFault(t *testing.T) {
	for kind, lock := range troubledLocks {
		for name, strike := range troubles {
			t.Run(kind+", "+name, func(t *testing.T) {
				for seed := range uint64(4) {
					virtual(t, func(t *testing.T, m *lockertest.Memory) { lock.under(t, m, name, strike, seed) })
				}
			})
		}
	}
}

func (lock troubledLock) under(t *testing.T, m *lockertest.Memory, name string, strike trouble, seed uint64) {
	const ttl, during = 3 * time.Second, 20 * time.Second
	held := &holdings{troubledLock: lock, byLease: make(map[*locker.Lease]int)}
	var callers sync.WaitGroup
	var granted, longest int64
	var mu sync.Mutex
	var processes []*lockertest.Process
	// The test cancels this context when it kills the process, because a dead process makes no
	// more calls.
	dying, die := context.WithCancel(context.Background())
	defer die()
	until := time.Now().Add(during)
	for i := range 3 {
		p := m.NewProcess()
		processes = append(processes, p)
		e, err := locktest.NewEngine(p, append(lock.options, locker.WithTTL(ttl))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			_ = e.Close(ctx) // the error does not matter, because Close fails for a dead process
		})
		alive := context.Background()
		if i == 0 {
			alive = dying
		}
		for c := range 6 {
			r := rand.New(rand.NewPCG(seed, uint64(100*i+c)))
			callers.Go(func() {
				for time.Now().Before(until) && alive.Err() == nil {
					began := time.Now()
					ok := held.use(alive, e, r)
					mu.Lock()
					if ok {
						granted++
						longest = max(longest, int64(time.Since(began)))
					}
					mu.Unlock()
					time.Sleep(upTo(r, 30*time.Millisecond)) //nolint:forbidigo // in a bubble
				}
			})
		}
	}
	r, struck := rand.New(rand.NewPCG(seed, 0)), 0
	for time.Now().Before(until) {
		time.Sleep(upTo(r, 2*time.Second)) //nolint:forbidigo // in a bubble
		if name != "processes die" {
			strike(m, processes[r.IntN(3)], r)
			struck++
		} else if dying.Err() == nil {
			strike(m, processes[0], r)
			die()
			struck++
		}
	}
	for _, op := range []locker.Op{locker.OpAcquire, locker.OpRenew, locker.OpRelease} {
		m.LoseReplies(op, 0)
		m.Delay(op, 0)
		m.DelayReplies(op, 0)
	}
	callers.Wait()
	time.Sleep(2 * time.Minute) //nolint:forbidigo // in a bubble
	if struck == 0 {
		t.Errorf("seed %d: positive control: no fault", seed)
	}
	if held.excesses > 0 && !mayOverlap[name] {
		t.Errorf("seed %d: %d times more than %d units", seed, held.excesses, lock.limit)
	}
	if held.unsorted > 0 && !lock.unordered && !mayOverlap[name] {
		t.Errorf("seed %d: %d fences that did not grow", seed, held.unsorted)
	}
	t.Logf("seed %d: %d grants, the longest wait %v", seed, granted, time.Duration(longest))
	if granted < 10 || time.Duration(longest) > 40*time.Second {
		t.Errorf("seed %d: %d grants, the longest wait %v", seed, granted, time.Duration(longest))
	}
	if m.Len() > 0 || m.Queued() > 0 {
		t.Errorf("seed %d: %d keys and %d waiters are left", seed, m.Len(), m.Queued())
	}
}

// use acquires the key, works, and releases it, and reports whether it was granted and not lost.
// Some callers give up during the wait or during the work.
func (h *holdings) use(ctx context.Context, e *locker.Engine, r *rand.Rand) (granted bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.IntN(3) == 0 {
		time.AfterFunc(upTo(r, 2*time.Second), cancel)
	}
	rule, units := h.rule(r)
	rule.Key = "k"
	switch r.IntN(10) {
	case 0:
		rule.Wait = locker.NoWait
	case 1:
		rule.Wait = 1 + upTo(r, time.Second)
	}
	work := upTo(r, 60*time.Millisecond)
	if r.IntN(50) == 0 {
		work = upTo(r, 10*time.Second)
	}
	err := locker.Run(ctx, e, rule, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		granted = true
		h.enter(lease, units)
		defer h.leave(lease)
		select {
		case <-ctx.Done():
		case <-time.After(work):
		}
		return nil
	})
	return granted && !errors.Is(err, locker.ErrLost)
}

// Callers of one process pass two permits on to each other, each with a block of fences. No caller
// may get a fence beyond the block of its permit, because another permit has that fence.
func TestPermitsThatArePassedOnShareNoFence(t *testing.T) {
	virtual(t, func(t *testing.T, m *lockertest.Memory) {
		l := lockertest.NewLocker(t, m)
		var mu sync.Mutex
		fences := make(map[uint64]int)
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() {
				err := locker.Run(t.Context(), l, locker.Rule{Key: "k", Limit: 2}, func(ctx context.Context) error {
					lease, _ := locker.FromContext(ctx)
					mu.Lock()
					fences[lease.Fence()]++
					mu.Unlock()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		for fence, n := range fences {
			if n != 1 {
				t.Errorf("%d callers had the fence %d", n, fence)
			}
		}
	})
}
