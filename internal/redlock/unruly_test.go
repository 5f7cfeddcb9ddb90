package quorum_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

var unrulyFor = flag.Duration("unruly", 6*time.Second, "how long the network of a quorum is unruly")

// unruly is a client with three faults: its calls are late, the server executes them after they
// have failed for the caller, or their answers are lost.
type unruly struct {
	skewed
	calm *atomic.Bool
	late *sync.WaitGroup // calls that the server executes after they have failed for the caller
	hits *atomic.Int32
}

func (u unruly) Process(ctx context.Context, cmd redis.Cmder) error {
	if u.calm.Load() || cmd.Args()[0] != "evalsha" {
		return u.skewed.Process(ctx, cmd)
	}
	pause(rand.N(2 * time.Millisecond))
	fault := rand.IntN(100)
	switch {
	case fault < 3: // late
		pause(rand.N(150 * time.Millisecond))
		return u.skewed.Process(ctx, cmd)
	case fault >= 11:
		return u.skewed.Process(ctx, cmd)
	}
	u.hits.Add(1)
	again := redis.NewStringCmd(context.WithoutCancel(ctx), cmd.Args()...)
	if fault < 7 { // the server executes the command after its caller has given it up
		u.late.Go(func() {
			pause(rand.N(400 * time.Millisecond))
			_ = u.skewed.Process(context.WithoutCancel(ctx), again)
		})
	} else { // its answer is lost
		_ = u.skewed.Process(context.WithoutCancel(ctx), again)
	}
	cmd.SetErr(os.ErrDeadlineExceeded)
	return os.ErrDeadlineExceeded
}

func pause(d time.Duration) { <-time.After(d) }

// tenants is the holder of a key, and the fences of its earlier holders.
type tenants struct {
	mu      sync.Mutex
	inside  map[*locker.Lease]bool
	fences  map[uint64]string
	highest uint64
	grants  int
	wrong   []string
}

// earlierFence returns the largest fence of the writers so far. A lease that is asked for from now
// on must have a larger fence.
func (h *tenants) earlierFence() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.highest
}

// enter records the holder with the lease l and the given name, and checks that no other holder
// excludes it. The fence of l must be larger than earlierFence.
func (h *tenants) enter(l *locker.Lease, earlierFence uint64, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grants++
	f := l.Fence()
	now := time.Now()
	if !now.Before(l.Expires()) || l.Context().Err() != nil {
		return
	}
	for other := range h.inside {
		if other.Context().Err() == nil && now.Before(other.Expires()) && (other.Mode() == locker.Exclusive || l.Mode() == locker.Exclusive) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s holds with fence %d, beside fence %d", name, f, other.Fence()))
		}
	}
	h.inside[l] = true
	if l.Mode() == locker.Exclusive {
		if was := h.fences[f]; was != "" {
			h.wrong = append(h.wrong, fmt.Sprintf("%s has fence %d, which %s had", name, f, was))
		}
		h.fences[f] = name
	}
	if f <= earlierFence {
		h.wrong = append(h.wrong, fmt.Sprintf("%s has fence %d, asked for after %d was granted", name, f, earlierFence))
	}
	if l.Mode() == locker.Exclusive {
		h.highest = max(h.highest, f)
	}
}

func (h *tenants) leave(l *locker.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inside, l)
}

// visit acquires the key, holds it for a while, and releases it. It does nothing if the key is not
// granted.
func (h *tenants) visit(l *locker.Engine, name string) {
	earlierFence := h.earlierFence()
	rule := locker.Rule{Key: "a"}
	if rand.IntN(10) == 0 {
		rule.Wait = locker.NoWait
	}
	ctx, cancel := context.WithTimeout(context.Background(), rand.N(800*time.Millisecond))
	defer cancel()
	lease, err := l.Acquire(ctx, rule)
	if err != nil {
		return
	}
	h.enter(lease, earlierFence, name)
	pause(rand.N(10 * time.Millisecond))
	if rand.IntN(30) == 0 {
		pause(300 * time.Millisecond) // so long that the lease must be renewed
	}
	h.leave(lease)
	_ = lease.Release(context.Background())
}

// Three nodes have different clocks. The network delays, loses and repeats calls, and from time to
// time a node is emptied. No two processes hold a key at once, fences grow, and at the end no key
// is left.
func TestAQuorumInAnUnrulyNetwork(t *testing.T) {
	t.Parallel()
	opts := []locker.QuorumOption{
		locker.WithTTL(300 * time.Millisecond), locker.WithMaxTTL(400 * time.Millisecond),
		locker.WithMaxSkew(300 * time.Millisecond), locker.WithNodeTimeout(100 * time.Millisecond),
	}
	servers := enrolled(t, 3, opts...)
	var calm atomic.Bool
	var hits atomic.Int32
	var late, working sync.WaitGroup
	h := &tenants{inside: make(map[*locker.Lease]bool), fences: make(map[uint64]string)}
	var ls []*locker.Engine
	end := time.Now().Add(*unrulyFor)
	for i := range 4 {
		var cs []locker.Client
		for j, by := range []time.Duration{-140 * time.Millisecond, 0, 130 * time.Millisecond} {
			cs = append(cs, unruly{skewedNode(t, servers[j], by), &calm, &late, &hits})
		}
		l, err := locker.NewRedlock(cs, opts...)
		if err != nil {
			t.Fatal(err)
		}
		ls = append(ls, l)
		for j := range 3 {
			working.Go(func() {
				for time.Now().Before(end) {
					h.visit(l, fmt.Sprintf("process %d, worker %d", i, j))
				}
			})
		}
	}
	emptied := make(chan struct{})
	go func() {
		defer close(emptied)
		for time.Until(end) > 3*time.Second {
			pause(3 * time.Second)
			s := servers[rand.IntN(len(servers))]
			c := redis.NewClient(&redis.Options{Addr: s.Addr()})
			_ = c.FlushAll(context.Background()).Err()
			_ = c.Close()
		}
	}()
	working.Wait()
	<-emptied
	calm.Store(true)
	late.Wait()
	for _, l := range ls {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
	t.Logf("%d grants, %d faults", h.grants, hits.Load())
	for _, w := range h.wrong[:min(len(h.wrong), 10)] {
		t.Error(w)
	}
	if h.grants < 10 || hits.Load() < 10 {
		t.Errorf("positive control: %d grants, %d faults", h.grants, hits.Load())
	}
	for _, s := range servers {
		waitUntilEmpty(t, s)
	}
}
