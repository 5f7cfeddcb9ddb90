package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The server walks over thousands of dead waiters once. So the time for this is
// proportional to the number of dead waiters, and not to its square.
func TestADeadFleetIsPassedOverInOneWalk(t *testing.T) {
	t.Parallel()
	for name, open := range lockers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			c := server.Client(t)
			const n = 4000
			now := time.Now().UnixMicro()
			pipe := c.Pipeline()
			for i := range n {
				token := fmt.Sprintf("DEADDEADDEADDEADDEAD%06d", i)
				pipe.ZAdd(t.Context(), "latchkit:q:{k}:k", redis.Z{
					Score: float64(now - int64(n-i)), Member: token + "|latchkit:i:" + token + "|2000|0|64|0|",
				})
			}
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
			e := open(t, c)
			release(t, acquire(t, e, locker.Rule{Key: "k"}))
			stats, err := c.Info(t.Context(), "commandstats").Result()
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.SplitSeq(stats, "\r\n") {
				name, rest, _ := strings.Cut(line, ":")
				if name != "cmdstat_zrange" && name != "cmdstat_zrem" {
					continue
				}
				var calls int
				most := 20
				if name == "cmdstat_zrem" {
					most += n // one command for each entry
				}
				if _, err := fmt.Sscanf(rest, "calls=%d", &calls); err != nil || calls > most {
					t.Errorf("%s: %d calls for %d dead processes", name, calls, n)
				}
			}
			if left := c.Exists(t.Context(), "latchkit:q:{k}:k").Val(); left != 0 {
				t.Error("the dead are still in the queue")
			}
		})
	}
}

// A streak may last only for a limited time. This time begins when the process receives the
// grant, not when it sends the acquire. So a process can hand on the key even over a slow
// network.
func TestStreaksOverASlowLink(t *testing.T) {
	t.Parallel()
	const callers, each = 16, 10
	synctest.Test(t, func(t *testing.T) {
		store := slow{Store: lockertest.NewMemory().NewProcess(), delay: 15 * time.Millisecond}
		e, err := locktest.NewEngine(&store)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close(context.Background()) }()
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					l, err := e.Acquire(t.Context(), locker.Rule{Key: "k"})
					if err != nil {
						t.Error(err)
						return
					}
					_ = l.Release(context.Background())
				}
			})
		}
		all.Wait()
		if n := store.calls.Load(); n > callers*each/10 {
			t.Errorf("%d calls to the server for %d locks: no streaks", n, callers*each)
		}
	})
}

// slow is a Store that behaves as if a slow network were in front of it. The field delay is the
// additional time of each call.
type slow struct {
	store.Store
	delay time.Duration
	calls atomic.Int64
}

func (s *slow) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	s.calls.Add(1)
	time.Sleep(s.delay)
	return s.Store.Acquire(ctx, c)
}

func (s *slow) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	s.calls.Add(1)
	time.Sleep(s.delay)
	return s.Store.Release(ctx, c)
}

// While a waiter's Acquire hangs, the waiter can get the key by message, even if another
// message has arrived before the grant.
func TestAGrantBehindOtherNewsIsTakenWhileACallHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	through := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 4})
	t.Cleanup(func() { _ = through.Close() })
	holder := newEngine(t, server.Client(t))
	waiter := newEngine(t, split{through, server.Client(t)})
	lease := acquire(t, holder, locker.Rule{Key: "k", TTL: 20 * time.Second})
	got, over := make(chan time.Time, 1), make(chan error, 1)
	go func() {
		l, err := waiter.Acquire(t.Context(), locker.Rule{Key: "k", TTL: 20 * time.Second})
		if err == nil {
			got <- time.Now()
			err = l.Release(context.Background())
		}
		over <- err
	}()
	awaitWaiters(t, holder, "k", 1)
	time.Sleep(300 * time.Millisecond)
	held := proxy.HoldRequests(1, chaos.Command("evalsha"))
	t.Cleanup(held.Lift)
	held.Await(t, 1) // an Acquire is under way
	admin := server.Client(t)
	entries := admin.ZRange(t.Context(), "latchkit:q:{k}:k", 0, -1).Val()
	if len(entries) != 1 {
		t.Fatal("nobody waits", entries)
	}
	token, rest, _ := strings.Cut(entries[0], "|")
	inbox, _, _ := strings.Cut(rest, "|")
	if n := admin.Publish(t.Context(), inbox, "head 5000 "+token+" k").Val(); n != 1 {
		t.Fatal("nobody receives", n)
	}
	time.Sleep(100 * time.Millisecond)
	release(t, lease)
	freed := time.Now()
	if late := (<-got).Sub(freed); late > 1500*time.Millisecond {
		t.Errorf("the grant was noticed after %v; its claim is over after 2 s", late)
	}
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	before := scriptsRun(t, admin)
	held.Lift()
	await(t, "the late Acquire has run", func() bool { return scriptsRun(t, admin) > before })
	if left := admin.Get(t.Context(), "k").Val(); left != "" {
		t.Errorf("after the release, a late Acquire has taken the key: %s", left)
	}
}

// scriptsRun returns the number of scripts that the server of c has executed.
func scriptsRun(t *testing.T, c *redis.Client) (n int) {
	t.Helper()
	stats, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// split is a client that sends commands over one connection pool, and subscribes over another.
type split struct{ commands, messages *redis.Client }

func (s split) Process(ctx context.Context, cmd redis.Cmder) error {
	return s.commands.Process(ctx, cmd)
}

func (s split) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return s.messages.Subscribe(ctx, channels...)
}

// Revoke names a fence, and affects only the holder with this fence. This is also true for a
// key that KeepFor keeps after a release, and that no token holds.
func TestBreakHitsOnlyTheFenceThatItNames(t *testing.T) {
	t.Parallel()
	for name, open := range lockers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			e := open(t, server.Client(t))
			keep := func(atLeast time.Duration) uint64 {
				l := acquire(t, e, locker.Rule{Key: "k", TTL: time.Second, KeepFor: atLeast, Wait: 5 * time.Second})
				release(t, l)
				return l.Fence()
			}
			old := keep(300 * time.Millisecond)
			if _, err := e.Inspect(t.Context(), "k"); err != nil { // afterwards the server knows the script
				t.Fatal(err)
			}
			var next uint64
			between := &interposer{Client: server.Client(t), callAt: 2, do: func() { next = keep(time.Minute) }}
			operator := open(t, between)
			err := operator.Revoke(t.Context(), "k", old, "stuck")
			info, lookErr := e.Inspect(t.Context(), "k")
			if lookErr != nil || !info.Held || info.Fence != next {
				t.Errorf("Revoke of fence %d answered %v, and the key that fence %d keeps is now %+v %v", old, err, next, info, lookErr)
			}
			if err := e.Revoke(t.Context(), "k", next, "stuck"); err != nil {
				t.Error("a kept key cannot be broken:", err)
			}
		})
	}
}

// interposer is a client that calls the function do before its command number callAt.
type interposer struct {
	*redis.Client
	n, callAt int
	do        func()
}

func (b *interposer) Process(ctx context.Context, cmd redis.Cmder) error {
	if b.n++; b.n == b.callAt {
		b.do()
	}
	return b.Client.Process(ctx, cmd)
}

// Above 2^53, the server cannot count fences exactly, so all grants would have the same fence.
// When the fence counter has such a value, an acquire returns an error instead.
func TestACounterAboveTheExactNumbersIsRefused(t *testing.T) {
	t.Parallel()
	for name, open := range lockers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			c := server.Client(t)
			e := open(t, c)
			first := acquire(t, e, locker.Rule{Key: "k"})
			counter := counterOf(t, c)
			for _, spoilt := range []string{"9223372036854775807", "9007199254740992", "1e300"} {
				if err := c.Set(t.Context(), counter, spoilt, 0).Err(); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				waiter := make(chan error, 1)
				go func() {
					_, err := open(t, server.Client(t)).Acquire(ctx, locker.Rule{Key: "k"})
					waiter <- err
				}()
				if first != nil {
					awaitWaiters(t, e, "k", 1)
					release(t, first) // the release must succeed, although there is no larger fence for the next grant
					first = nil
				}
				_, err := e.Acquire(t.Context(), locker.Rule{Key: "k", Wait: time.Second})
				if err == nil || !strings.Contains(err.Error(), "2^53") {
					t.Errorf("counter %s: %v", spoilt, err)
				}
				both := []locker.Rule{{Key: "k", Wait: time.Second}, {Key: "l", Wait: time.Second}}
				err = locker.RunAll(t.Context(), e, both, func(context.Context) error { return nil })
				if err == nil || !strings.Contains(err.Error(), "2^53") {
					t.Errorf("counter %s, several keys: %v", spoilt, err)
				}
				if err := <-waiter; err == nil {
					t.Errorf("counter %s: a waiter got a fence", spoilt)
				}
				cancel()
			}
			if err := c.Set(t.Context(), counter, time.Now().UnixMicro()+1000000, 0).Err(); err != nil {
				t.Fatal(err)
			}
			release(t, acquire(t, e, locker.Rule{Key: "k"})) // after the repair that the error names, the key can be acquired
		})
	}
}

func counterOf(t *testing.T, c *redis.Client) string {
	t.Helper()
	keys, err := c.Keys(t.Context(), "latchkit:f:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	return keys[0]
}

// Metadata that is too long is cut between two characters, and never inside of a character.
func TestMetadataIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for n := 250; n < 260; n++ {
		long := strings.Repeat("x", n) + strings.Repeat("€", 3)
		e := newEngine(t, redistest.Shared(t).Client(t), locker.WithMetadata(func(context.Context) string { return long }))
		key := fmt.Sprint("metadata:", n)
		acquire(t, e, locker.Rule{Key: key})
		info, err := e.Inspect(t.Context(), key)
		if err != nil || !utf8.ValidString(info.Metadata) || !strings.HasPrefix(long, info.Metadata) || len(info.Metadata) < 253 || len(info.Metadata) > 256 {
			t.Errorf("%d bytes: %q %v", len(long), info.Metadata, err)
		}
	}
}
