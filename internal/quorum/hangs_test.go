package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// standstill is how long nodes hang.
const standstill = 20 * time.Second

// One node of three is stopped for 20 s. No lease is lost, all calls succeed, and each call
// returns when the other nodes have answered. After the stopped node has continued, no key is left
// there.
func TestANodeThatHangsDelaysNobody(t *testing.T) {
	t.Parallel()
	servers, l := hanging(t)
	other := redlockOn(t, servers)
	var held []*locker.Lease
	for i := range 20 {
		held = append(held, acquire(t, l, locker.Rule{Key: fmt.Sprint("held", i), TTL: 5 * time.Second}))
	}
	busy := acquire(t, other, locker.Rule{Key: "busy", TTL: time.Minute})
	servers[0].Pause()
	until := time.Now().Add(standstill)
	for i := 0; time.Now().Before(until); i++ {
		key := fmt.Sprint("free", i%5)
		back := func(what string, call func(ctx context.Context) error) {
			t.Helper()
			locktest.Back(t, nodeTimeout, what, func() {
				if err := call(t.Context()); err != nil {
					t.Errorf("%s, with two nodes that answer: %v", what, err)
				}
			})
		}
		var lease *locker.Lease
		back("Acquire", func(ctx context.Context) (err error) { lease, err = l.Acquire(ctx, locker.Rule{Key: key}); return err })
		if lease == nil {
			return
		}
		back("Extend", func(ctx context.Context) error { return lease.Extend(ctx, time.Minute) })
		back("Inspect", func(ctx context.Context) error { _, err := l.Inspect(ctx, key); return err })
		back("Release", lease.Release)
		back("an acquire that is undone", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if _, err := l.Acquire(ctx, locker.Rule{Key: "busy"}); !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return nil
		})
	}
	servers[0].Resume()
	for _, lease := range held {
		if lease.Context().Err() != nil {
			t.Errorf("%v is lost: %v", lease, context.Cause(lease.Context()))
		}
		release(t, lease)
	}
	release(t, busy)
	for _, s := range servers {
		waitUntilEmpty(t, s)
	}
}

// Two nodes of three are stopped. No call can succeed, and each call returns within its promised
// time. Afterwards no key is left.
func TestEveryCallIsBackInTimeWhileAQuorumHangs(t *testing.T) {
	t.Parallel()
	servers, l := hanging(t)
	lease := acquire(t, l, locker.Rule{Key: "held", TTL: time.Minute})
	second := acquire(t, l, locker.Rule{Key: "second", TTL: time.Minute})
	leaving, err := locker.NewRedlock(clients(clientsOf(t, servers)))
	if err != nil {
		t.Fatal(err)
	}
	release(t, locktest.Acquire(t, leaving, locker.Rule{Key: "warm"}))
	short := acquire(t, l, locker.Rule{Key: "short", TTL: time.Second})
	servers[0].Pause()
	servers[1].Pause()
	const patience = 100 * time.Millisecond
	for what, call := range map[string]func(ctx context.Context) error{
		"Acquire": func(ctx context.Context) error { _, err := l.Acquire(ctx, locker.Rule{Key: "a"}); return err },
		"Wait": func(context.Context) error {
			_, err := l.Acquire(context.Background(), locker.Rule{Key: "b", Wait: patience})
			return err
		},
		"Extend":  func(ctx context.Context) error { return lease.Extend(ctx, time.Minute) },
		"Inspect": func(ctx context.Context) error { _, err := l.Inspect(ctx, "held"); return err },
		"Release": func(context.Context) error {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			return second.Release(ctx)
		},
		"a renewal": func(context.Context) error {
			<-short.Context().Done()
			return context.Cause(short.Context())
		},
		"Close, with an undo": func(ctx context.Context) error {
			half, cancel := context.WithTimeout(ctx, patience/2)
			defer cancel()
			if _, err := leaving.Acquire(half, locker.Rule{Key: "undone", TTL: time.Second}); err == nil {
				return nil
			}
			return leaving.Close(ctx)
		},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		promised := patience
		switch what {
		case "Release":
			promised = 2 * time.Second // a release continues for this long although its ctx has ended
		case "a renewal":
			promised = time.Second // the TTL
		}
		locktest.Back(t, promised, what, func() {
			if err := call(ctx); err == nil {
				t.Errorf("%s: two nodes that stand still have answered", what)
			}
		})
		cancel()
	}
	servers[0].Resume()
	servers[1].Resume()
	release(t, lease)
	for _, s := range servers {
		waitUntilEmpty(t, s)
	}
}

// hanging makes three nodes, and a Locker that has already acquired and released a key.
func hanging(t *testing.T) ([]*redistest.Server, *locker.Engine) {
	t.Helper()
	servers := enrolled(t, 3)
	l, err := locker.NewRedlock(clients(clientsOf(t, servers)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	release(t, locktest.Acquire(t, l, locker.Rule{Key: "warm"}))
	return servers, l
}

// A node that hangs gets only a few calls, and not one for each lock of the process. Otherwise the
// node would later give many late votes, and each vote would have to be given back.
func TestANodeThatHangsIsSentFewCalls(t *testing.T) {
	t.Parallel()
	ms, cs := meddlers(t, enrolled(t, 3))
	l := newRedlock(t, cs)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	gate, sent := make(chan struct{}), new(atomic.Int32)
	ms[2].setMeddle(func(_ string, run func() error) error {
		sent.Add(1)
		<-gate
		return run()
	})
	t.Cleanup(sync.OnceFunc(func() { close(gate) }))
	const locks, few = 200, 40
	began := time.Now()
	for i := range locks {
		release(t, acquire(t, l, locker.Rule{Key: fmt.Sprint("k", i)}))
	}
	// The client gives up a call after a second, so it can send a few calls in each second.
	if n, most := int(sent.Load()), few*(1+int(time.Since(began)/time.Second)); n > most {
		t.Errorf("%d calls were sent to a node that hangs during %d locks, want at most %d", n, locks, most)
	} else if n == 0 {
		t.Error("positive control: the node got no call")
	}
}

// A node of three is stopped, and the others show the holder of a key, or that a key is free. So
// Inspect returns when these two nodes have answered, and does not wait for the
// silent node, which would take a second. The machine may be busy, so one quick answer of several
// is enough.
func TestLooksDoNotWaitForASilentNodeWhenTheOthersAgree(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	held := acquire(t, redlockOn(t, servers), locker.Rule{Key: "held", TTL: time.Minute})
	for what, look := range map[string]func(l *locker.Engine) error{
		"Inspect of a held key": func(l *locker.Engine) error {
			info, err := l.Inspect(t.Context(), "held")
			if err == nil && (!info.Held || info.Fence != held.Fence()) {
				t.Errorf("the held key is %+v", info)
			}
			return err
		},
		"Inspect of a free key": func(l *locker.Engine) error {
			info, err := l.Inspect(t.Context(), "free")
			if err == nil && info.Held {
				t.Errorf("the free key is %+v", info)
			}
			return err
		},
	} {
		var took []time.Duration
		for len(took) < 5 && (len(took) == 0 || slices.Min(took) > 700*time.Millisecond) {
			l := redlockOn(t, servers, locker.WithNodeTimeout(20*time.Second)) // to a new Locker, all nodes are responsive
			if err := look(l); err != nil {
				t.Errorf("%s, with three nodes that answer: %v", what, err)
			}
			servers[1].Pause()
			start := time.Now()
			err := look(l)
			took = append(took, time.Since(start))
			servers[1].Resume()
			if err != nil {
				t.Errorf("%s, with two nodes that answer: %v", what, err)
			}
		}
		if slices.Min(took) > 700*time.Millisecond {
			t.Errorf("%s took %v", what, took)
		}
	}
}
