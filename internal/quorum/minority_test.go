package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

func TestAMinorityMayBeDown(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 5)
	l := redlockOn(t, servers)
	other := redlockOn(t, servers, locker.WithNodeTimeout(100*time.Millisecond))
	servers[1].Kill()
	servers[3].Kill()
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: 2 * time.Second})
	_, err := other.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	if e := wantErr(t, err, "a", locker.ErrBusy); e.RetryAfter <= 0 || e.RetryAfter > 2*time.Second {
		t.Errorf("retry after %v", e.RetryAfter)
	}
	first := lease.Expires()
	eventually(t, "it is renewed", func() bool { return lease.Expires().After(first) })
	servers[4].Kill()
	lost(t, lease, locker.ErrLost)
	_, err = other.Acquire(t.Context(), locker.Rule{Key: "b", Wait: 300 * time.Millisecond})
	wantErr(t, err, "b", locker.ErrQuorum)
	wantNot(t, err, locker.ErrBusy)
}

// A stopped server does not slow the calls down. After it has continued, no call that was sent to
// the server meanwhile leaves a key there.
func TestANodeThatStandsStillIsNotWaitedFor(t *testing.T) {
	servers := enrolled(t, 3)
	eventually(t, "no goroutine of another test is left", func() bool { return len(goroutines()) == 0 })
	cs := clientsOf(t, servers)
	l, err := locker.NewRedlock(clients(cs), locker.WithNodeTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	servers[1].Pause()
	begun := time.Now()
	for i := range 200 {
		release(t, acquire(t, l, locker.Rule{Key: fmt.Sprint("k", i)}))
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("200 leases took %v", took)
	}
	if n := len(goroutines()); n > 60 {
		t.Errorf("%d goroutines wait for a server that stands still", n)
	}
	servers[1].Resume()
	for _, s := range servers {
		waitUntilEmpty(t, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all goroutines have ended", func() bool { return len(goroutines()) == 0 })
}

// One call that hangs does not prove that its server hangs. So even if one call hangs at each
// server, other calls must succeed.
func TestACallThatHangsOnEachNodeHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	var faults []*chaos.Fault
	for i, s := range servers {
		proxy := chaos.NewProxy(t, s.Addr())
		cs[i] = s.Client(t, func(o *redis.Options) { o.Addr, o.ReadTimeout = proxy.Addr(), time.Minute })
		loadScripts(t, cs[i])
		faults = append(faults, proxy.SwallowReplies(1, quorumCall(locker.OpAcquire, "hangs")))
	}
	l := newRedlock(t, clients(cs), locker.WithNodeTimeout(time.Second))
	p := asks(t, l, locker.Rule{Key: "hangs", Wait: 10 * time.Second})
	for _, f := range faults {
		f.Await(t, 1)
	}
	<-time.After(1500 * time.Millisecond) // now these calls have been given up
	for i := range 20 {
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: fmt.Sprint("k", i), Wait: locker.NoWait})
		if err != nil {
			t.Fatal(err)
		}
		release(t, lease)
	}
	p.Cancel()
	<-p.Done
	for i := range cs {
		cs[i].Close() // this also ends the calls that hang
	}
}

// Two nodes decide a release, and the third node does not get it. The client notices this when Close
// has waited until the end of its context, and still frees the third node, which would keep its vote
// until the TTL.
func TestAReleaseDuringCloseLeavesNoVote(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	s := quorumStore(cs, nodeTimeout)
	claim := claimOn("a")
	if g, err := s.Acquire(t.Context(), claim); err != nil || g.State != store.Granted {
		t.Fatal(g.State, err)
	}
	for _, m := range ms {
		eventually(t, "the node has voted", func() bool { return m.Exists(t.Context(), "a").Val() == 1 })
	}
	for range 3 { // each node executes these calls after its vote, so all votes have arrived here
		if info, err := store.CapabilitiesOf(s).Inspect(t.Context(), "a"); err != nil || !info.Held {
			t.Fatal(info, err)
		}
	}
	var lost atomic.Int32
	closing := make(chan struct{})
	ms[2].setMeddle(func(script string, run func() error) error {
		if script == "release" && lost.Add(1) == 1 {
			<-closing
			return os.ErrDeadlineExceeded
		}
		return run()
	})
	eventually(t, "two nodes have decided the release", func() bool { // the first try can come before the answer to a vote
		_, err := s.Release(t.Context(), claim)
		return err == nil
	})
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.(calls.Steps).Close(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Close has not waited for the call: %v", err)
	}
	close(closing)
	began := time.Now()
	eventually(t, "the third node is free, too", func() bool { return ms[2].Exists(t.Context(), "a").Val() == 0 })
	if took := time.Since(began); took > claim.TTL/2 || lost.Load() < 1 {
		t.Errorf("after %v, and %d releases to it", took, lost.Load())
	}
}
