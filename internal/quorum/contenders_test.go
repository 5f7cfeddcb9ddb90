package quorum_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/locker"
)

func TestAnAcquireThatWasGivenUpLeavesNoVote(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	var faults []*chaos.Fault
	for i, s := range servers {
		proxy := chaos.NewProxy(t, s.Addr())
		cs[i] = through(t, s, proxy)
		loadScripts(t, cs[i])
		faults = append(faults, proxy.HoldRequests(1, quorumCall(locker.OpAcquire, "a")))
	}
	l := newRedlock(t, clients(cs))
	ctx, cancel := context.WithCancel(t.Context())
	p := asks(t, l, locker.Rule{Key: "a"})
	for _, f := range faults {
		f.Await(t, 1)
	}
	cancel()
	p.Cancel()
	<-p.Done
	if !errors.Is(p.Err, ctx.Err()) {
		t.Fatal(p.Err)
	}
	direct := clientsOf(t, servers)
	for _, c := range direct {
		eventually(t, "a tombstone stands", func() bool { return len(c.Keys(t.Context(), "latchkit:x:*").Val()) == 1 })
	}
	for i, f := range faults {
		before := scriptsRun(t, direct[i])
		f.Lift()
		eventually(t, "the acquire runs, late", func() bool { return scriptsRun(t, direct[i]) > before })
		if n := direct[i].Exists(t.Context(), "a").Val(); n != 0 {
			t.Errorf("node %d: the late acquire took the vote", i)
		}
	}
}

// Three processes always ask at the same time. Each process gets the key, two processes never hold
// it at once, and the fences grow.
func TestContendersSplitTheVotesAndAllAreServed(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	var inside atomic.Int32
	var last atomic.Uint64
	var all sync.WaitGroup
	const each = 40
	for range 3 {
		l := redlockOn(t, servers, locker.WithHandoffs(1))
		all.Go(func() {
			for range each {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: "wanted", Wait: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the key")
				}
				if f := lease.Fence(); last.Swap(f) >= f {
					t.Errorf("fence %d does not grow", f)
				}
				inside.Add(-1)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, s := range servers {
		waitUntilEmpty(t, s)
	}
}

// rounds records how many rounds of requests each acquire took.
type rounds struct {
	mu  sync.Mutex
	all []int
}

func (r *rounds) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, func(o locker.Outcome) {
		if op == locker.OpAcquire {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.all = append(r.all, o.Rounds)
		}
	}
}

func (r *rounds) last() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[len(r.all)-1]
}

func newRounds() *rounds { return new(rounds) }
