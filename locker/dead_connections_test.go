package locker_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// mortals makes connections that die as a firewall kills them: without a word to either side.
type mortals struct {
	mu     sync.Mutex
	all    []*mortal
	victim atomic.Pointer[[]byte] // the next connection over which this is written dies; nil: none
}

type mortal struct {
	net.Conn
	owner *mortals
	dead  atomic.Bool
}

func (m *mortals) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	one := &mortal{Conn: c, owner: m}
	m.all = append(m.all, one)
	return one, nil
}

// kill kills all present connections.
func (m *mortals) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.all {
		c.dead.Store(true)
	}
}

func (c *mortal) Write(b []byte) (int, error) {
	if v := c.owner.victim.Load(); v != nil && bytes.Contains(b, *v) && c.owner.victim.CompareAndSwap(v, nil) {
		c.dead.Store(true)
	}
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// With a client that has only time-outs, the caller whose connection dies waits for the time-out of
// the client. Nobody else does.
func TestADeadConnectionHoldsUpNoRenewalAndNoOtherKey(t *testing.T) {
	t.Parallel()
	const timeout, busy = 3 * time.Second, time.Second
	for range 10 { // on a busy machine the call may have a goroutine of its own, and then its caller is back at once
		var conns mortals
		client := redis.NewClient(&redis.Options{
			Addr: redistest.Start(t).Addr(), Dialer: conns.dial, ReadTimeout: timeout, WriteTimeout: timeout,
		})
		t.Cleanup(func() { _ = client.Close() })
		l := newSingle(t, client)
		held := acquire(t, l, locker.Rule{Key: "held", TTL: 1500 * time.Millisecond})
		for range 50 {
			release(t, acquire(t, l, locker.Rule{Key: "warm"}))
		}
		word := []byte("stuck")
		conns.victim.Store(&word)
		back := make(chan time.Duration)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			began := time.Now()
			if _, err := l.Acquire(ctx, locker.Rule{Key: "stuck"}); err == nil {
				t.Error("a dead connection has brought a lock")
			}
			back <- time.Since(began)
		}()
		took, longest := time.Duration(0), time.Duration(0)
		for i := 0; took == 0; i++ {
			began := time.Now()
			release(t, acquire(t, l, locker.Rule{Key: fmt.Sprint("other", i%10)}))
			longest = max(longest, time.Since(began))
			select {
			case took = <-back:
			case <-time.After(time.Millisecond):
			}
		}
		if err := held.Context().Err(); err != nil {
			t.Errorf("a lease has ended: %v", context.Cause(held.Context()))
		}
		if release(t, held); took < time.Second {
			continue
		}
		if took > timeout+busy {
			t.Errorf("the caller is back after %v", took)
		}
		if longest > timeout/2 {
			t.Errorf("a caller of another key waited for %v", longest)
		}
		return
	}
	t.Error("no caller was on its own goroutine when its connection died")
}

// Connections that died while nobody used them cost an acquire a part of a second, and no error.
func TestDeadConnectionsOfAPoolCostAnAcquireAQuarterOfASecond(t *testing.T) {
	t.Parallel()
	var conns mortals
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), Dialer: conns.dial})
	t.Cleanup(func() { _ = client.Close() })
	l := newSingle(t, client)
	all := func(callers int) (longest time.Duration) {
		var work sync.WaitGroup
		var slowest atomic.Int64
		for i := range callers {
			work.Go(func() {
				began := time.Now()
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: fmt.Sprint("k", i)})
				if err != nil {
					t.Error(err)
					return
				}
				for took := int64(time.Since(began)); took > slowest.Load(); {
					slowest.Store(took)
				}
				release(t, lease)
			})
		}
		work.Wait()
		return time.Duration(slowest.Load())
	}
	for range 20 {
		all(8)
	}
	conns.kill()
	time.Sleep(6 * time.Second) //nolint:forbidigo // firewalls forget only connections that nobody uses
	if took := all(8); took < 200*time.Millisecond || took > 2*time.Second {
		t.Errorf("the slowest of 8 callers waited for %v", took)
	}
	for i := range 3 {
		if took := all(1); took > 2*time.Second {
			t.Errorf("caller %d of the next waited for %v", i, took)
		}
	}
}

// An acquire that was sent again, because its connection seemed dead, may arrive after the lease of
// its copy was released. It takes nothing then.
func TestAnAcquireThatArrivesAfterTheReleaseOfItsCopyTakesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr(); o.ReadTimeout = 20 * time.Second })
	first := newSingle(t, client)
	release(t, acquire(t, first, locker.Rule{Key: "known"})) // now the server knows the scripts
	l := newSingle(t, client)                                // its first call has a goroutine
	late := proxy.HoldRequests(1, chaos.Containing("late"))
	lease := acquire(t, l, locker.Rule{Key: "late"})
	if late.Hits() != 1 {
		t.Fatal("positive control: no acquire was held up")
	}
	release(t, lease)
	direct := server.Client(t)
	scripts := func() string {
		_, stats, _ := strings.Cut(direct.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha:")
		calls, _, _ := strings.Cut(stats, ",")
		return calls
	}
	before := scripts()
	late.Lift()
	eventually(t, "the first acquire arrives", func() bool { return scripts() != before })
	if n := direct.Exists(t.Context(), "late").Val(); n != 0 {
		t.Error("a token that was released holds the key")
	}
}
