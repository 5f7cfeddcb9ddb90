package redisstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// splitter is a proxy that sends every subscription to another server, as some proxies do that
// spread the connections of their clients.
type splitter struct {
	addr          string
	scripts, subs string       // the servers
	subscriptions atomic.Int32 // how many connections have subscribed
	calls         atomic.Int32 // how often a client has sent something to the server of the scripts
}

func startSplitter(t *testing.T, scripts, subs string) *splitter {
	t.Helper()
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &splitter{addr: in.Addr().String(), scripts: scripts, subs: subs}
	var conns sync.WaitGroup
	t.Cleanup(func() { _ = in.Close(); conns.Wait() })
	conns.Go(func() {
		for {
			c, err := in.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { p.serve(c) })
		}
	})
	return p
}

// serve sends what the client c sends to the server of the scripts, and from the client's first
// subscription on to the other server.
func (p *splitter) serve(c net.Conn) {
	defer c.Close()
	server, err := net.Dial("tcp", p.scripts)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() { _, _ = io.Copy(c, server) }()
	subscribed, buffer := false, make([]byte, 64<<10)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		if !subscribed && bytes.Contains(bytes.ToLower(buffer[:n]), []byte("\r\nsubscribe\r\n")) {
			subscribed = true
			p.subscriptions.Add(1)
			other, err := net.Dial("tcp", p.subs)
			if err != nil {
				return
			}
			_ = server.Close()
			server = other
			go func() { _, _ = io.Copy(c, other) }()
		} else if !subscribed {
			p.calls.Add(1)
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// The server confirms the subscription, but its scripts see no subscriber. Then the waiters poll in
// the queue, in their order, after few attempts to subscribe and one warning of each process.
func TestWaitersWhoseMessagesDoNotArrivePollInOrderWithoutAStorm(t *testing.T) {
	t.Parallel()
	scripts, subs := redistest.Start(t), redistest.Start(t)
	proxy := startSplitter(t, scripts.Addr(), subs.Addr())
	holder := newLocker(t, redis.NewClient(&redis.Options{Addr: scripts.Addr()}))
	acquire := func(key string) *locker.Lease {
		lease, err := holder.Acquire(t.Context(), locker.Rule{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	const waiters = 3
	var seen warnings
	lockers := make([]*locker.Engine, waiters)
	for i := range lockers {
		lockers[i] = newLocker(t, redis.NewClient(&redis.Options{Addr: proxy.addr, Protocol: 2}), locker.WithObserver(&seen))
	}
	began, first := time.Now(), acquire("first")
	order := startWaiters(t, holder, lockers, "first")
	for seen.count("no-messages") < waiters && time.Since(began) < time.Minute {
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // between two looks
	}
	t.Logf("after %v: %d subscriptions, %d calls, %d warnings", time.Since(began), proxy.subscriptions.Load(), proxy.calls.Load(), seen.count("no-messages"))
	if proxy.subscriptions.Load() < 2*waiters {
		t.Error("positive control: the subscriptions do not go to another server")
	}
	for time.Since(began) < 10*time.Second { // the time that the limit is about
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // between two looks
	}
	if n := proxy.subscriptions.Load(); n > 5*waiters {
		t.Errorf("%d subscriptions of %d processes in 10 s", n, waiters)
	}
	if n := seen.count("no-messages"); n != waiters {
		t.Errorf("%d warnings of %d processes", n, waiters)
	}
	_ = first.Release(t.Context())
	if got := <-order; len(got) != waiters {
		t.Errorf("served %v", got)
	}
	calls := proxy.calls.Load()
	second := acquire("second")
	order = startWaiters(t, holder, lockers, "second")
	_ = second.Release(t.Context())
	if got := <-order; !slices.IsSorted(got) || len(got) != waiters {
		t.Errorf("served in the order %v", got)
	}
	if n := proxy.calls.Load() - calls; n > 1000 {
		t.Errorf("%d calls for %d waiters", n, waiters)
	}
	if n := proxy.subscriptions.Load(); n > 5*waiters {
		t.Errorf("%d subscriptions of %d processes, although they poll", n, waiters)
	}
}

// startWaiters makes the lockers wait for key one after the other. The channel receives the order
// in which they were served.
func startWaiters(t *testing.T, holder *locker.Engine, lockers []*locker.Engine, key string) <-chan []int {
	t.Helper()
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for i, l := range lockers {
		all.Go(func() {
			err := locker.Run(t.Context(), l, locker.Rule{Key: key, Wait: time.Minute}, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		for deadline := time.Now().Add(10 * time.Second); ; {
			queue, err := holder.Queue(t.Context(), key)
			if err != nil && !strings.Contains(err.Error(), "no answer") {
				t.Fatal(err)
			}
			if len(queue) == i+1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d waiters are in the queue, want %d", len(queue), i+1)
			}
			time.Sleep(5 * time.Millisecond) //nolint:forbidigo // between two looks
		}
	}
	served := make(chan []int, 1)
	go func() {
		all.Wait()
		served <- order
	}()
	return served
}

func newLocker(t *testing.T, c *redis.Client, opts ...locker.SingleOption) *locker.Engine {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	l, err := locker.New(c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}
