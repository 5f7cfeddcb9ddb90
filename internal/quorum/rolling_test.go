package quorum_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// callers lock one key again and again until the test ends, in two processes, and report how
// often they had it. They fail the test if two of them hold the key.
func callers(t *testing.T, servers []*redistest.Server, opts ...locker.QuorumOption) (grants *atomic.Int64) {
	t.Helper()
	grants = new(atomic.Int64)
	var holders atomic.Int32
	for range 2 {
		l := redlockOn(t, servers, opts...)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		t.Cleanup(func() { stop(); <-ended })
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				lease, err := l.Acquire(ctx, locker.Rule{Key: "x", Wait: 5 * time.Second})
				switch {
				case err == nil:
				case ctx.Err() != nil, errors.Is(err, locker.ErrQuorum), errors.Is(err, locker.ErrUnavailable), errors.Is(err, locker.ErrBusy):
					continue
				default:
					t.Error(err)
					return
				}
				if holders.Add(1) > 1 && lease.Context().Err() == nil {
					t.Error("two hold the key")
				}
				grants.Add(1)
				time.Sleep(time.Millisecond) //nolint:forbidigo // the work
				holders.Add(-1)
				_ = lease.Release(context.Background()) // ErrLost: the node that was restarted was needed
			}
		}()
	}
	return grants
}

// These are the rows of the table on restarts in docs/quorum.md, under load.
func TestTheRestartsOfThreeNodesDoWhatTheDocumentsSay(t *testing.T) {
	t.Parallel()
	opts := []locker.QuorumOption{locker.WithTTL(500 * time.Millisecond), locker.WithMaxTTL(3 * time.Second), locker.WithMaxSkew(50 * time.Millisecond)}
	servers := enrolled(t, 3, opts...)
	l := redlockOn(t, servers, opts...)
	grants := callers(t, servers, opts...)
	goOn := func(when string) {
		t.Helper()
		before := grants.Load()
		eventually(t, "callers go on "+when, func() bool { return grants.Load() > before+20 })
	}
	goOn("at first")

	for _, s := range servers { // a rolling restart
		s.Restart()
		goOn("while one restarts")
		eventually(t, "all nodes vote before the next restart", func() bool { return allVote(t, l) })
	}

	servers[2].Kill()
	goOn("while one is down")

	restarted := time.Now()
	servers[0].Restart()
	eventually(t, "one was restarted and one is down, so locks stop", func() bool {
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "y", Wait: locker.NoWait})
		return errors.Is(err, locker.ErrQuorum)
	})
	goOn("when the wait is over, although one is down")
	if d := time.Since(restarted); d < 3*time.Second {
		t.Errorf("they went on after %v", d)
	}
	servers[2].Restart()
	eventually(t, "all nodes vote", func() bool { return allVote(t, l) })

	for _, s := range servers[:2] { // a majority at once
		s.Restart()
	}
	goOn("after one wait, when a majority was restarted")
	eventually(t, "all nodes vote", func() bool { return allVote(t, l) })
}

// A fence that was raised above the clocks is forgotten when all nodes have been restarted without
// data, one after the other. The operator raises it again.
func TestARollingRestartForgetsARaisedFence(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, brief...)
	l := redlockOn(t, servers, brief...)
	next := func() uint64 {
		t.Helper()
		lease := acquire(t, l, locker.Rule{Key: "k", Wait: 5 * time.Second})
		defer release(t, lease)
		return lease.Fence()
	}
	above := uint64(time.Now().Add(time.Hour).UnixMicro())
	raise := func() {
		t.Helper()
		if err := l.RaiseFence(t.Context(), "k", above); err != nil {
			t.Fatal(err)
		}
		if f := next(); f <= above {
			t.Errorf("the fence %d was raised above %d", f, above)
		}
	}
	raise()
	for _, s := range servers {
		s.Restart()
		eventually(t, "all vote", func() bool { _ = tries(t, l, "y"); return allVote(t, l) })
	}
	if f := next(); f > above {
		t.Errorf("the fence is %d after the restarts, so the nodes remember it: correct docs/quorum.md", f)
	}
	raise()
}
