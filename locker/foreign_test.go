package locker_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// In the tests of this file, other programs lock the same keys with other libraries.

// foreign are values that other libraries write under a key that they hold.
var foreign = map[string]string{
	"plain SET NX PX":    "1",
	"redislock":          base64.RawURLEncoding.EncodeToString(make([]byte, 16)),
	"redislock metadata": base64.RawURLEncoding.EncodeToString(make([]byte, 16)) + "host:7:metadata",
	"redsync":            base64.StdEncoding.EncodeToString(make([]byte, 16)),
	"redis-py":           hex.EncodeToString(make([]byte, 16)),
	"Redisson-like":      "285475da-9152-4c83-822a-67ee2f116a79:52",
	"ShedLock":           "ADDED:2026-01-02T03:04:05.678Z@host",
	"numbers":            "17:42:1",
	"a token's length":   "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
	"empty":              "",
}

// poller is a client that locks as redislock does: SET NX PX, and a script that deletes the key
// only if it still holds the client's value.
type poller struct {
	*testing.T
	*redis.Client
	key, token string
}

func newPoller(t *testing.T, c *redis.Client, key string) *poller {
	t.Helper()
	return &poller{t, c, key, base64.RawURLEncoding.EncodeToString([]byte(rand.Text()))[:22]}
}

func (p *poller) obtain(ttl time.Duration) bool {
	p.Helper()
	switch err := p.SetArgs(p.Context(), p.key, p.token, redis.SetArgs{Mode: "NX", TTL: ttl}).Err(); err {
	case nil:
		return true
	case redis.Nil:
		return false
	default:
		p.Error(err)
		return false
	}
}

func (p *poller) release() {
	p.Helper()
	n, err := p.Eval(p.Context(), `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`,
		[]string{p.key}, p.token).Int()
	if err != nil || n != 1 {
		p.Errorf("the poller's release: %d %v", n, err)
	}
}

func TestAForeignHolderExcludesUsAndIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	client := server.Client(t)
	l, other := newSingle(t, client), newSingle(t, server.Client(t))
	for name, value := range foreign {
		key := "foreign:" + name
		for how, end := range map[string]struct {
			ttl time.Duration
			do  func()
		}{
			"deletes it":              {time.Minute, func() { client.Del(t.Context(), key) }},
			"deletes it, without TTL": {0, func() { client.Del(t.Context(), key) }},
			"lets it expire":          {0, func() { client.PExpire(t.Context(), key, 30*time.Millisecond) }},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				if err := client.Set(t.Context(), key, value, end.ttl).Err(); err != nil {
					t.Fatal(err)
				}
				_, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
				wantErr(t, err, key, locker.ErrBusy)
				if i, err := l.Inspect(t.Context(), key); err != nil || !i.Held || !i.Foreign || i.Fence != 0 {
					t.Fatalf("%+v %v", i, err)
				}
				first := queues(t, l, locker.Rule{Key: key}, client)
				second := queues(t, other, locker.Rule{Key: key}, client)
				if got := client.Get(t.Context(), key).Val(); got != value {
					t.Fatalf("the key holds %q", got)
				}
				first.WaitsStill()
				second.WaitsStill()
				end.do()
				// The waiter gets the lease within the longest pause of the Backoff, or within
				// the poller's TTL.
				lease := first.Granted(130 * time.Millisecond)
				if newPoller(t, client, key).obtain(time.Minute) {
					t.Fatal("a foreign program got the key that we hold")
				}
				second.WaitsStill()
				release(t, lease)
				release(t, second.Granted(0))
			})
		}
	}
}

// The head of the queue asks as soon as a foreign lease expires. The head does not wait for the
// end of its pause.
func TestAForeignLeaseThatRunsOutGoesToTheHead(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client, locker.WithBackoff(locker.Exponential(time.Hour, time.Hour)))
	const key = "foreign:expires"
	p := newPoller(t, client, key)
	start := time.Now()
	if !p.obtain(700 * time.Millisecond) {
		t.Fatal("positive control: the poller did not get the key")
	}
	w := queues(t, l, locker.Rule{Key: key}, client)
	lease := w.Granted(700 * time.Millisecond)
	if took := w.At.Sub(start); took < 700*time.Millisecond {
		t.Errorf("granted after %v", took)
	}
	release(t, lease)
}

// A client that only polls has no place in the server's queue. As long as the queue has a waiter,
// each release hands the key to a waiter, so the key is never free. So the polling client gets the
// key only when the queue is empty.
func TestAPollerGetsInWhenTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	client := server.Client(t)
	const key, waiters = "foreign:starves", 12
	var ls []*locker.Engine
	for range 3 {
		// With WithFair, all waiting callers are in the server's queue, where the test can count
		// them.
		ls = append(ls, newSingle(t, server.Client(t), locker.WithFair()))
	}
	first := acquire(t, ls[0], locker.Rule{Key: key})
	var served sync.WaitGroup
	var n atomic.Int32
	for i := range waiters {
		w := asks(t, ls[i%len(ls)], locker.Rule{Key: key})
		served.Go(func() {
			<-w.Done
			if w.Err != nil {
				t.Error(w.Err)
				return
			}
			<-time.After(5 * time.Millisecond)
			n.Add(1)
			if err := w.Lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all wait", func() bool { return inLine(t, client, key) == waiters })
	p := newPoller(t, client, key)
	polls := 0
	release(t, first)
	eventually(t, "the poller gets in", func() bool { polls++; return p.obtain(time.Minute) })
	if before := n.Load(); before != waiters {
		t.Errorf("the poller got in before %d of %d waiters", waiters-before, waiters)
	}
	if polls < 5 {
		t.Errorf("positive control: it asked %d times", polls)
	}
	served.Wait()
	p.release()
}

// With WithoutQueue, latchkit's callers do not queue at the server. So they and the clients that
// poll have the same chance to get the key.
func TestWithoutQueuePollersAndWeShareAKey(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	client := server.Client(t)
	const key, enough = "foreign:shared", 30
	l := newSingle(t, client, locker.WithoutQueue(), locker.WithBackoff(locker.Jitter(locker.Exponential(4*time.Millisecond, 4*time.Millisecond))))
	stop := make(chan struct{})
	var ours, theirs, inside int // only the lock under test guards these counters
	var mu sync.Mutex
	visit := func(n *int) {
		mu.Lock()
		inside++
		if inside != 1 {
			t.Error("two are inside")
		}
		*n++
		if ours >= enough && theirs >= enough {
			select {
			case <-stop:
			default:
				close(stop)
			}
		}
		mu.Unlock()
		<-time.After(time.Millisecond)
		mu.Lock()
		inside--
		mu.Unlock()
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !ended(stop) {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: 10 * time.Second})
				if err != nil {
					if !ended(stop) || !errors.Is(err, locker.ErrBusy) {
						t.Error(err)
					}
					return
				}
				visit(&ours)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			p := newPoller(t, client, key)
			for !ended(stop) {
				if p.obtain(10 * time.Second) {
					visit(&theirs)
					p.release()
				}
				<-time.After(4 * time.Millisecond)
			}
		})
	}
	select {
	case <-stop:
	case <-time.After(20 * time.Second):
		close(stop)
		t.Errorf("a caller was served fewer than %d times", enough)
	}
	wg.Wait()
	t.Logf("we were served %d times, the pollers %d times", ours, theirs)
	if n := inLine(t, client, key); n != 0 {
		t.Errorf("%d entries are in the queue", n)
	}
}

func ended(stop chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}
