package quorum_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// holdReleases makes the releases at all nodes wait until the function open is called. The result
// waiting counts the releases that wait, and the result votes counts the requests for votes.
func holdReleases(ms []*meddler) (open func(), waiting, votes *atomic.Int32) {
	gate, waiting, votes := make(chan struct{}), new(atomic.Int32), new(atomic.Int32)
	for _, m := range ms {
		m.setMeddle(func(script string, run func() error) error {
			switch script {
			case "release":
				waiting.Add(1)
				<-gate
			case "vote":
				votes.Add(1)
			}
			return run()
		})
	}
	return sync.OnceFunc(func() { close(gate) }), waiting, votes
}

// runWhileHeld calls Run for key. No node answers Run's release until the function open is called.
// The result left reports whether Run has returned before the call of open. On a busy machine, a
// node may not be prompt, and then Run waits for the release. The channel ran receives the result
// of Run.
func runWhileHeld(t *testing.T, l *locker.Engine, ms []*meddler, key string) (left bool, open func(), waiting, votes *atomic.Int32, ran chan error) {
	t.Helper()
	ran, held := make(chan error, 1), make(chan struct{})
	go func() {
		ran <- locker.Run(t.Context(), l, locker.Rule{Key: key}, func(ctx context.Context) error {
			for _, m := range ms { // continue when each node has given its vote for this key
				for m.Exists(ctx, key).Val() == 0 && ctx.Err() == nil {
					time.Sleep(time.Millisecond) //nolint:forbidigo // the pause between two checks
				}
			}
			open, waiting, votes = holdReleases(ms)
			close(held)
			return ctx.Err()
		})
	}()
	<-held
	select {
	case err := <-ran:
		ran <- err
		return true, open, waiting, votes, ran
	case <-time.After(200 * time.Millisecond):
		return false, open, waiting, votes, ran
	}
}

// Run returns before any node has answered the release. The next acquire of the same process does
// not overtake the release: no node is asked for a vote before it has answered the release.
func TestBackgroundReleaseOnAQuorum(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	l := newRedlock(t, cs, locker.WithBackgroundRelease())
	for try, was := 0, false; !was; try++ {
		if try == 50 {
			t.Fatal("Run has waited for each release")
		}
		key := fmt.Sprint("k", try)
		left, open, waiting, votes, ran := runWhileHeld(t, l, ms, key)
		if was = left; left {
			next := make(chan error, 1)
			go func() {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: key})
				if err == nil {
					err = lease.Release(t.Context())
				}
				next <- err
			}()
			eventually(t, "the release is sent to a quorum", func() bool { return waiting.Load() >= 2 })
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // time enough to send the next acquire
			if n := votes.Load(); n > 0 {
				t.Errorf("the next acquire has overtaken the release: %d nodes were asked", n)
			}
			open()
			if err := <-next; err != nil {
				t.Fatal(err)
			}
		} else {
			eventually(t, "the release is sent", func() bool { return waiting.Load() > 0 })
			open()
		}
		if err := <-ran; err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			m.setMeddle(nil)
		}
	}
}

// Close waits for a release for which Run has not waited.
func TestCloseWaitsForABackgroundReleaseOnAQuorum(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	for try, was := 0, false; !was; try++ {
		if try == 50 {
			t.Fatal("Run has waited for each release")
		}
		l, err := locker.NewRedlock(cs, locker.WithBackgroundRelease())
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint("k", try)
		left, open, waiting, _, ran := runWhileHeld(t, l, ms, key)
		was = left
		eventually(t, "the release is sent", func() bool { return waiting.Load() > 0 })
		closed := make(chan error, 1)
		go func() { closed <- l.Close(t.Context()) }()
		select {
		case err := <-closed:
			t.Errorf("Close returned %v before the release was answered", err)
			closed <- err
		case <-time.After(50 * time.Millisecond):
		}
		open()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		for i, m := range ms {
			if m.setMeddle(nil); m.Exists(t.Context(), key).Val() != 0 {
				t.Errorf("node %d keeps the key after Close", i)
			}
		}
	}
}

// When a node hangs, Run waits until its lease is released. The other nodes decide this release.
func TestBackgroundReleaseIsAwaitedWhileANodeHangs(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	ms, cs := meddlers(t, servers)
	l, err := locker.NewRedlock(cs, locker.WithBackgroundRelease(), locker.WithNodeTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	servers[2].Pause()
	defer servers[2].Resume()
	for i := range 3 { // after three acquires, the client knows that calls to the node hang
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: fmt.Sprint("warm", i)})
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // half the time after which a call is given up
	}
	if err := locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	free := 0
	for _, m := range ms[:2] {
		if m.Exists(t.Context(), "a").Val() == 0 {
			free++
		}
	}
	if free != 2 {
		t.Errorf("when Run returned, %d nodes of 2 had released the key", free)
	}
}
