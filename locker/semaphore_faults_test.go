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

// permitFault causes one fault of the Store or of one process. A test calls a permitFault again
// and again.
type permitFault func(m *lockertest.Memory, p *lockertest.Process, r *rand.Rand)

var permitFaults = map[string]permitFault{
	"nothing":          func(*lockertest.Memory, *lockertest.Process, *rand.Rand) {},
	"answers are lost": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) { m.LoseReplies(anyOp(r), 1+r.IntN(3)) },
	"answers are late": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		m.DelayReplies(anyOp(r), upTo(r, 300*time.Millisecond))
	},
	"calls are late": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		m.Delay(anyOp(r), upTo(r, 300*time.Millisecond))
	},
	"messages are lost": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Lose: 1 + r.IntN(5)})
	},
	"messages are late": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Delay: upTo(r, 400*time.Millisecond)})
	},
	"messages come twice": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Repeat: r.IntN(2) == 0})
	},
	"processes are deaf": func(_ *lockertest.Memory, p *lockertest.Process, r *rand.Rand) {
		p.Disturb(lockertest.EventFaults{Deaf: r.IntN(2) == 0})
	},
	"processes die": func(_ *lockertest.Memory, p *lockertest.Process, _ *rand.Rand) { p.Die() },
	"the server forgets": func(m *lockertest.Memory, _ *lockertest.Process, r *rand.Rand) {
		if r.IntN(20) == 0 {
			m.Wipe()
		}
	},
}

func anyOp(r *rand.Rand) locker.Op {
	return []locker.Op{locker.OpAcquire, locker.OpRenew, locker.OpRelease}[r.IntN(3)]
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// unitsHeld counts the units of all leases whose contexts have not ended.
type unitsHeld struct {
	mu       sync.Mutex
	byLease  map[*locker.Lease]int
	limit    int
	excesses int
}

func (u *unitsHeld) enter(l *locker.Lease, weight int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.byLease[l] = weight
	used := 0
	for l, w := range u.byLease {
		if time.Now().Before(l.Expires()) && l.Context().Err() == nil {
			used += w
		}
	}
	if used > u.limit {
		u.excesses++
	}
}

func (u *unitsHeld) leave(l *locker.Lease) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byLease, l)
}

// Callers of three processes want units of one key. They want different numbers of units, their
// contexts end at any moment, and there are faults all the time. The units that are held never
// exceed the limit, no caller is stuck, and at the end nothing is left.
func TestPermitsUnderFaults(t *testing.T) {
	for name, fault := range permitFaults {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(4) {
				virtual(t, func(t *testing.T, m *lockertest.Memory) { permitsUnder(t, m, name, fault, seed) })
			}
		})
	}
}

func permitsUnder(t *testing.T, m *lockertest.Memory, name string, fault permitFault, seed uint64) {
	const limit, ttl, during = 4, 3 * time.Second, 20 * time.Second
	held := &unitsHeld{byLease: make(map[*locker.Lease]int), limit: limit}
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
		e, err := locktest.NewEngine(p, locker.WithTTL(ttl))
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
					ok := oneUse(alive, e, held, r, limit)
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
			fault(m, processes[r.IntN(3)], r)
			struck++
		} else if dying.Err() == nil {
			fault(m, processes[0], r)
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
	if held.excesses > 0 && name != "the server forgets" {
		t.Errorf("seed %d: %d times more than %d units", seed, held.excesses, limit)
	}
	t.Logf("seed %d: %d grants, the longest wait %v", seed, granted, time.Duration(longest))
	if granted < 100 || time.Duration(longest) > 40*time.Second {
		t.Errorf("seed %d: %d grants, the longest wait %v", seed, granted, time.Duration(longest))
	}
	if m.Len() > 0 || m.Queued() > 0 {
		t.Errorf("seed %d: %d keys and %d waiters are left", seed, m.Len(), m.Queued())
	}
}

// oneUse acquires units, works, and releases them, and reports whether the units were granted. It
// records the held units in units. Some callers give up during the wait or during the work.
func oneUse(ctx context.Context, e *locker.Engine, units *unitsHeld, r *rand.Rand, limit int) (granted bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.IntN(3) == 0 {
		time.AfterFunc(upTo(r, 2*time.Second), cancel)
	}
	rule := locker.Rule{Key: "k", Limit: limit, Weight: 1}
	switch r.IntN(10) {
	case 0:
		rule.Weight = limit
	case 1, 2:
		rule.Weight = 2
	case 3:
		rule.Wait = locker.NoWait
	case 4:
		rule.Wait = 1 + upTo(r, time.Second)
	}
	err := locker.Run(ctx, e, rule, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		granted = true
		units.enter(lease, rule.Weight)
		defer units.leave(lease)
		select {
		case <-ctx.Done():
		case <-time.After(upTo(r, 60*time.Millisecond)):
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
