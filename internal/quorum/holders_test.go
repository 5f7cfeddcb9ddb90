package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A call of Revoke names a fence. The call ends the lease that has this fence, and not a later
// lease.
func TestBreakHitsTheLeaseThatIsNamed(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	l := redlockOn(t, servers)
	gate, arrived := make(chan struct{}), new(sync.WaitGroup)
	arrived.Add(3)
	var late []locker.Client
	for _, c := range clientsOf(t, servers) {
		late = append(late, &locktest.HeldBack{Client: c, Gate: gate, Arrived: arrived, SHA: scriptSHA("release")})
	}
	operator, err := locker.NewRedlock(late)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = operator.Close(context.Background()) })
	one := acquire(t, l, locker.Rule{Key: "doc"})
	checkHeldByAll(t, servers, "doc")
	broken := make(chan error, 1)
	go func() { broken <- operator.Revoke(context.Background(), "doc", one.Fence(), "stuck") }()
	arrived.Wait()
	release(t, one)
	eventually(t, "the lease is over everywhere", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.Client(t).Exists(t.Context(), "doc").Val() == 1 })
	})
	two := acquire(t, l, locker.Rule{Key: "doc", TTL: 20 * time.Second})
	checkHeldByAll(t, servers, "doc")
	close(gate)
	// A call without an answer ends after a second.
	if err := <-broken; !errors.Is(err, locker.ErrGone) && !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Break of a lease that is over: %v", err)
	}
	eventually(t, "all nodes have executed the late calls", func() bool {
		return !slices.ContainsFunc(late, func(c locker.Client) bool { return c.(*locktest.HeldBack).Passed.Load() == 0 })
	})
	for i, s := range servers {
		if lease := s.Client(t).Get(t.Context(), "doc").Val(); !strings.Contains(lease, fmt.Sprint(":", two.Fence(), ":")) {
			t.Errorf("node %d: the lease of fence %d was revoked by a Break of fence %d: %q", i, two.Fence(), one.Fence(), lease)
		}
	}
}

// checkHeldByAll waits until key exists on all servers.
func checkHeldByAll(t *testing.T, servers []*redistest.Server, key string) {
	t.Helper()
	eventually(t, "all nodes have it", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.Client(t).Exists(t.Context(), key).Val() == 0 })
	})
}

// A call of Complete was refused, and only one node of three has the done mark. The mark of a
// single node does not count.
func TestWorkIsDoneWhenMostNodesSaySo(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	rule := locker.Rule{Key: "job", OnceFor: time.Minute, Wait: locker.NoWait}
	// This is the state after a Complete that only this node has executed, because the lease was
	// revoked at the two other nodes.
	cs[0].Set(t.Context(), redisstore.DoneKey("job"), "1", time.Minute)
	working := acquire(t, redlockOn(t, servers), rule)
	asks := redlockOn(t, servers)
	for answers := 0; answers < 50; {
		switch _, err := asks.Acquire(t.Context(), rule); {
		case errors.Is(err, locker.ErrBusy):
			answers++
		case err == nil || !errors.Is(err, locker.ErrUnavailable): // ErrUnavailable is allowed, but all other results are wrong
			t.Fatalf("%v, while another one works", err)
		}
	}
	release(t, working) // the work has failed, so it is not marked as done
	if err := acquire(t, asks, rule).Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := asks.Acquire(t.Context(), rule)
	wantErr(t, err, "job", locker.ErrDone)
}

// When a wait ends while the client still connects to the nodes, the error names the nodes.
func TestAWaitThatEndsWhileNodesAreDialledNamesThem(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	l := redlockOn(t, servers)
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
	servers[1].Kill()
	servers[2].Kill()
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
	wantErr(t, err, "a", locker.ErrQuorum)
	for _, s := range servers[1:] {
		if !strings.Contains(err.Error(), s.Addr()) {
			t.Errorf("%v: does not name %s", err, s.Addr())
		}
	}
}

// warnings is an Observer that keeps warnings.
type warnings struct {
	mu  sync.Mutex
	all []locker.Warning
}

func (w *warnings) Begin(ctx context.Context, _ locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, nil
}

func (w *warnings) Warn(x locker.Warning) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, x)
}

// list returns the warnings so far.
func (w *warnings) list() []locker.Warning {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

func newWarnings() *warnings { return new(warnings) }
