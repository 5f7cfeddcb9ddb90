package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// busy is a margin for times that a test checks: on a machine that runs other tests too, a
// goroutine may run this much later than planned. What the tests check would take longer without the
// promise: the time-out of a connection, or as long as the node stands still.
const busy = 2 * time.Second

// sites is a cluster whose masters do not change.
type sites struct {
	*redistest.Cluster
	client *redis.ClusterClient
}

func newSites(t *testing.T) sites {
	t.Helper()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	return sites{c, c.Client(t)}
}

// keys returns n keys whose slots belong to the given master.
func (s sites) keys(t *testing.T, master, n int) (keys []string) {
	t.Helper()
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("k", i)
		slot, err := s.client.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if _, owner := s.Owner(int(slot)); owner == master {
			keys = append(keys, key)
		}
	}
	return keys
}

// While a lease lasts, a renewal that gets no reply is repeated over other connections. The
// Engine repeats it before the time-out of the earlier call, because otherwise five dead
// connections would lead to the loss of this lease. With too many dead connections in a pool,
// the lease can be lost; docs/guarantees.md states their number.
func TestDeadConnectionsCostNoLease(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := chaos.NewProxy(t, s.Addr())
	e := newEngine(t, s.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }))
	lease := acquire(t, e, locker.Rule{Key: "k", TTL: 6 * time.Second})
	before := lease.Expires()
	const many = 5
	dead := proxy.SwallowReplies(many, chaos.Containing("k"))
	await(t, "the lease is renewed", func() bool { return lease.Expires().After(before) || lease.Context().Err() != nil })
	if err := context.Cause(lease.Context()); err != nil {
		t.Errorf("the lease has ended: %v", err)
	}
	if n := dead.Hits(); n != many {
		t.Errorf("positive control: %d renewals met a dead connection", n)
	}
	proxy.Cut()
}

// One node hangs for seconds. Every call to this node returns in time. Every call to another node
// succeeds.
func TestEveryCallIsBackInTimeWhileItsNodeHangs(t *testing.T) {
	t.Parallel()
	for name, deadlines := range map[string]bool{"with time-outs": false, "with deadlines": true} {
		gone := 5 * time.Second // the time-out of go-redis, which ends a call that was under way
		if deadlines {
			gone = 0
		}
		for over, start := range map[string]func(testing.TB, ...string) *redistest.Server{"TCP": redistest.Start, "TLS": redistest.StartTLS} {
			t.Run("one server, over "+over+", "+name, func(t *testing.T) {
				t.Parallel()
				s := start(t)
				client := s.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = deadlines })
				standstill(t, client, newEngine(t, client), "a", "b", s, gone, nil)
			})
		}
		t.Run("Cluster, "+name, func(t *testing.T) {
			t.Parallel()
			s := newSites(t)
			client := s.Client(t, func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = deadlines })
			hung, sound := s.keys(t, 0, 2), s.keys(t, 1, 5)
			e := newEngine(t, client)
			standstill(t, client, e, hung[0], hung[1], s.Masters[0], gone, func() {
				kept := acquire(t, e, locker.Rule{Key: sound[0], TTL: 6 * time.Second})
				for _, key := range sound[1:] {
					began := time.Now()
					release(t, acquire(t, e, locker.Rule{Key: key}))
					if took := time.Since(began); took > busy {
						t.Errorf("a lock at a sound node took %v", took)
					}
				}
				// longer than the TTL of the lease kept, which the Engine must renew meanwhile
				time.Sleep(7 * time.Second)
				release(t, kept)
			})
		})
	}
}

// spy is a hook that counts the calls which run on a goroutine of a test's functions.
type spy struct{ direct atomic.Int64 }

func (*spy) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.Contains(string(debug.Stack()), "locker.(*Engine).Acquire") {
			s.direct.Add(1)
		}
		return next(ctx, cmd)
	}
}
func (*spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestACallOnItsCallersGoroutineIsBackWithin250MillisecondsOfItsContext(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	proxy := chaos.NewProxy(t, s.Addr())
	client := s.Client(t, func(o *redis.Options) { o.Addr, o.ContextTimeoutEnabled = proxy.Addr(), true })
	seen := &spy{}
	client.AddHook(seen)
	e := newEngine(t, client)
	const patience = 100 * time.Millisecond
	// On a busy machine an answer may take 20 ms, and then the next call gets a batch.
	await(t, "a call on its caller's goroutine meets the server that hangs", func() bool {
		release(t, acquire(t, e, locker.Rule{Key: "warm"}))
		hole := proxy.BlackHole()
		defer hole.Lift()
		seen.direct.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		began := time.Now()
		if _, err := e.Acquire(ctx, locker.Rule{Key: "k"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the acquire at a server that hangs ended with %v", err)
		}
		if took := time.Since(began); took > patience+promised+busy {
			t.Errorf("the caller is back after %v", took)
		}
		return seen.direct.Load() > 0 && hole.Hits() > 0
	})
}

// standstill pauses s, the server that has the keys held and free, and then makes calls to this
// server. At the same time, it calls the function elsewhere, which makes calls to other
// servers. The parameter gone is after what time the client itself ends an acquire or a release, if
// it does not end them with their contexts.
func standstill(t *testing.T, c locker.Client, e *locker.Engine, held, free string, s *redistest.Server, gone time.Duration, elsewhere func()) {
	t.Helper()
	lease := acquire(t, e, locker.Rule{Key: held, TTL: 30 * time.Second})
	second := acquire(t, e, locker.Rule{Key: free, TTL: 30 * time.Second})
	leaving := newEngine(t, c) // an Engine whose acquire must be undone
	short := acquire(t, e, locker.Rule{Key: free + "3{" + free + "}", TTL: time.Second})
	s.Pause()
	const patience = 100 * time.Millisecond
	for name, call := range map[string]struct {
		do    func(ctx context.Context) error
		bound time.Duration // the time-out that the call itself promises
	}{
		"Acquire": {func(ctx context.Context) error {
			_, err := e.Acquire(ctx, locker.Rule{Key: free + "{" + free + "}"})
			return err
		}, patience + gone},
		"Wait": {func(context.Context) error {
			_, err := e.Acquire(context.Background(), locker.Rule{Key: free + "2{" + free + "}", Wait: patience})
			return err
		}, patience + gone},
		"Extend":     {func(ctx context.Context) error { return lease.Extend(ctx, time.Minute) }, patience},
		"Inspect":    {func(ctx context.Context) error { _, err := e.Inspect(ctx, held); return err }, patience},
		"Revoke":     {func(ctx context.Context) error { return e.Revoke(ctx, held, lease.Fence(), "stuck") }, patience},
		"RaiseFence": {func(ctx context.Context) error { return e.RaiseFence(ctx, held, 1) }, patience},
		"Release":    {second.Release, 2*time.Second + gone},
		"a renewal": {func(context.Context) error {
			<-short.Context().Done()
			return context.Cause(short.Context())
		}, time.Second},
		"Close, with an undo": {func(ctx context.Context) error {
			half, cancel := context.WithTimeout(ctx, patience/2)
			defer cancel()
			if _, err := leaving.Acquire(half, locker.Rule{Key: free + "4{" + free + "}"}); err == nil {
				return nil
			}
			return leaving.Close(ctx)
		}, patience},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		began := time.Now()
		if err := call.do(ctx); err == nil {
			t.Errorf("%s: a node that stands still has answered", name)
		}
		if took := time.Since(began); took > call.bound+promised+busy {
			t.Errorf("%s is back after %v", name, took)
		}
		cancel()
	}
	if elsewhere != nil {
		elsewhere()
	}
	s.Resume()
	release(t, lease)
	await(t, "nothing is left", func() bool {
		for _, key := range []string{held, free, free + "{" + free + "}", free + "2{" + free + "}", free + "3{" + free + "}"} {
			if info, err := e.Inspect(t.Context(), key); err != nil || info.Held || info.Waiters > 0 {
				return false
			}
		}
		return true
	})
}
