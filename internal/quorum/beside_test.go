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

// holdsReleases makes the releases at all nodes wait until open is called. begun counts them.
func holdsReleases(ms []*meddler) (open func(), begun *atomic.Int32) {
	gate, begun := make(chan struct{}), new(atomic.Int32)
	for _, m := range ms {
		m.with(func(script string, run func() error) error {
			if script == "quorum_release" {
				begun.Add(1)
				<-gate
			}
			return run()
		})
	}
	return sync.OnceFunc(func() { close(gate) }), begun
}

// Run returns before any node has answered the release. The next acquire of the same process does
// not overtake the release, and Close waits for it.
func TestBackgroundReleaseOnAQuorum(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	l, err := locker.NewRedlock(cs, locker.WithBackgroundRelease())
	if err != nil {
		t.Fatal(err)
	}
	left := false
	for try := 0; !left; try++ { // on a busy machine a node may not be prompt, and then the release is awaited
		if try == 50 {
			t.Fatal("Run has waited for each release")
		}
		key := fmt.Sprint("k", try)
		ran, held := make(chan error, 1), make(chan struct{})
		var open func()
		var begun *atomic.Int32
		go func() {
			ran <- locker.Run(t.Context(), l, locker.Rule{Key: key}, func(context.Context) error {
				open, begun = holdsReleases(ms)
				close(held)
				return nil
			})
		}()
		<-held
		select {
		case err = <-ran:
			left = true
		case <-time.After(200 * time.Millisecond):
		}
		next := make(chan error, 1)
		if left {
			go func() {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: key})
				if err == nil {
					err = lease.Release(t.Context())
				}
				next <- err
			}()
			select {
			case err := <-next:
				t.Errorf("the next acquire has overtaken the release: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			eventually(t, "the release is sent to a quorum", func() bool { return begun.Load() >= 2 })
			open()
		} else {
			eventually(t, "the release is sent", func() bool { return begun.Load() > 0 })
			open()
			err = <-ran
			close(next)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := <-next; err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			m.with(nil)
		}
	}
	closesAfterTheRelease(t, l, ms)
}

// closesAfterTheRelease tests that Close waits for a release that Run has not awaited.
func closesAfterTheRelease(t *testing.T, l *locker.Engine, ms []*meddler) {
	t.Helper()
	var open func()
	running := make(chan error, 1)
	held := make(chan struct{})
	go func() {
		running <- locker.Run(t.Context(), l, locker.Rule{Key: "last"}, func(context.Context) error {
			open, _ = holdsReleases(ms)
			close(held)
			return nil
		})
	}()
	<-held
	closed := make(chan error, 1)
	go func() { closed <- l.Close(t.Context()) }()
	select {
	case err := <-closed:
		t.Errorf("Close returned %v before the release was answered", err)
	case <-time.After(50 * time.Millisecond):
	}
	open()
	if err := <-running; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for i, m := range ms {
		if m.Exists(t.Context(), "last").Val() != 0 {
			t.Errorf("node %d keeps the key after Close", i)
		}
	}
}

// A node that hangs lets Run wait for the release, which the other nodes decide.
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
	for i := range 3 { // after these, the node's calls are known to hang
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: fmt.Sprint("warm", i)})
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // a call is given up after a second
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
