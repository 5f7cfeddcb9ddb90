package polling

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func newPolling(t *testing.T, c *redis.Client, opts ...locker.Option) *locker.Engine {
	t.Helper()
	l, err := New(redislock.New(c), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestPollingIsForeignToLocksWithAQueue(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	client := server.Client(t)
	single := locktest.Single(t, client)
	for _, metadata := range []string{"", "17:42:x", "host:7"} {
		l := newPolling(t, client, locker.WithMetadata(func(context.Context) string { return metadata }))
		key := "polling:foreign:" + metadata
		lease := locktest.Acquire(t, l, locker.Rule{Key: key})
		if i, err := single.Inspect(t.Context(), key); err != nil || !i.Held || !i.Foreign {
			t.Errorf("metadata %q: %+v %v", metadata, i, err)
		}
		if value := client.Get(t.Context(), key).Val(); !strings.HasSuffix(value, "|"+metadata) {
			t.Errorf("the key holds %q", value)
		}
		w := locktest.Queues(t, single, locker.Rule{Key: key}, client)
		locktest.Release(t, lease)
		locktest.Release(t, w.Granted(130*time.Millisecond)) // within the longest pause of the Backoff
	}
}

func TestPollingRenewsAndLoses(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newPolling(t, client)
	lease := locktest.Acquire(t, l, locker.Rule{Key: "polling:renew", TTL: 4 * time.Second})
	first := lease.Expires()
	locktest.Eventually(t, "it is renewed", func() bool { return lease.Expires().After(first.Add(time.Second)) })
	if err := lease.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), "polling:renew").Val(); left < 59*time.Minute {
		t.Errorf("%v left after an extension", left)
	}
	locktest.Release(t, lease)

	lease = locktest.Acquire(t, l, locker.Rule{Key: "polling:renew", TTL: time.Second})
	if err := client.Set(t.Context(), "polling:renew", "somebody else", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	locktest.Lost(t, lease, locker.ErrLost)
	_ = locktest.WantErr(t, lease.Release(t.Context()), "polling:renew", locker.ErrLost)
	if client.Get(t.Context(), "polling:renew").Val() != "somebody else" {
		t.Error("the next holder was disturbed")
	}
}

func TestPollingRefusesWhatRedislockCannotDo(t *testing.T) {
	t.Parallel()
	l := newPolling(t, redistest.Shared(t).Client(t))
	for _, rule := range []locker.Rule{{Key: "polling:no", OnceFor: time.Minute}, {Key: "polling:no", Mode: locker.Shared}} {
		if err := locker.Check(l, rule); !errors.Is(err, locker.ErrUnsupported) {
			t.Errorf("Check: %v", err)
		}
		_, err := l.Acquire(t.Context(), rule)
		_ = locktest.WantErr(t, err, "polling:no", locker.ErrUnsupported)
		locktest.WantNot(t, err, locker.ErrBusy, locker.ErrUnavailable)
	}
	if _, err := l.Inspect(t.Context(), "a"); !errors.Is(err, locker.ErrUnsupported) || !strings.Contains(err.Error(), "by this Locker") {
		t.Error(err)
	}
	if err := l.Revoke(t.Context(), "a", 0, ""); !errors.Is(err, locker.ErrUnsupported) {
		t.Error(err)
	}
	if err := l.RaiseFence(t.Context(), "a", 0); !errors.Is(err, locker.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := New(nil); err == nil || !strings.Contains(err.Error(), "polling.New") {
		t.Errorf("no client: %v", err)
	}
}

func TestPollingKeepsAKeyForAtLeast(t *testing.T) {
	t.Parallel()
	l := newPolling(t, redistest.Shared(t).Client(t))
	start := time.Now()
	locktest.Release(t, locktest.Acquire(t, l, locker.Rule{Key: "polling:keep", KeepFor: 300 * time.Millisecond}))
	locktest.Release(t, locktest.Acquire(t, l, locker.Rule{Key: "polling:keep"}))
	if took := time.Since(start); took < 290*time.Millisecond {
		t.Errorf("the key was free after %v", took)
	}
}

func TestRetriesOfRedislockAreABackoff(t *testing.T) {
	for name, tc := range map[string]struct {
		make func() redislock.RetryStrategy
		want []time.Duration
	}{
		"none":   {redislock.NoRetry, nil},
		"linear": {func() redislock.RetryStrategy { return redislock.LimitRetry(redislock.LinearBackoff(7), 3) }, []time.Duration{7, 7, 7}},
		"exponential": {func() redislock.RetryStrategy {
			return redislock.LimitRetry(redislock.ExponentialBackoff(5*time.Millisecond, 10*time.Millisecond), 3)
		}, []time.Duration{5e6, 8e6, 10e6}},
	} {
		b := Retries(tc.make)
		for range 2 { // each wait begins again with the first pause
			if got := slices.Collect(b); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, want %v", name, got, tc.want)
			}
		}
		for range b { // this caller stops early
			break
		}
	}
	client := redistest.Start(t).Client(t)
	l := newPolling(t, client, locker.WithBackoff(Retries(func() redislock.RetryStrategy {
		return redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 3)
	})))
	if _, err := redislock.Obtain(t.Context(), client, "polling:retries", time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	before := locktest.ScriptsRun(t, client)
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "polling:retries"})
	_ = locktest.WantErr(t, err, "polling:retries", locker.ErrBusy)
	if n := locktest.ScriptsRun(t, client) - before; n != 4 {
		t.Errorf("it asked %d times, the strategy lets it ask 4 times", n)
	}
}

// Of the waiting callers in one process, only one polls.
func TestOneCallerOfAProcessPollsForAll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newPolling(t, client, locker.WithBackoff(locker.Exponential(time.Hour, time.Hour)))
	lock, err := redislock.Obtain(t.Context(), client, "polling:one", time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []*locktest.Pending
	for range 20 {
		all = append(all, locktest.Asks(t, l, locker.Rule{Key: "polling:one"}))
	}
	locktest.Eventually(t, "all are there", func() bool { return locktest.ScriptsRun(t, client) >= 2 })
	<-time.After(50 * time.Millisecond)
	if n := locktest.ScriptsRun(t, client); n > 4 { // redislock's own obtain, and our first attempt
		t.Errorf("%d scripts", n)
	}
	for _, w := range all {
		w.Cancel()
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAnObtainWithoutAnAnswerIsCleared(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	direct := server.Client(t)
	l := newPolling(t, locktest.Through(t, server, proxy, sendOnce))
	loadRedislock(t, direct)

	const key = "polling:unclear"
	swallowed := proxy.SwallowReplies(1, redislockCall(locker.OpAcquire, key))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, locker.Rule{Key: key})
	_ = locktest.WantErr(t, err, key, context.DeadlineExceeded, locker.ErrUnavailable)
	locktest.WantNot(t, err, locker.ErrBusy)
	if swallowed.Hits() != 1 {
		t.Fatal("positive control: no answer was swallowed")
	}
	locktest.Eventually(t, "the key is free", func() bool { return direct.Exists(t.Context(), key).Val() == 0 })

	// Only this owner's value is deleted, because another holder may have come meanwhile.
	lock, err := redislock.Obtain(t.Context(), direct, key, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := locktest.ScriptsRun(t, direct)
	proxy.SwallowReplies(1, redislockCall(locker.OpAcquire, key))
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(ctx, locker.Rule{Key: key})
	_ = locktest.WantErr(t, err, key, context.DeadlineExceeded)
	locktest.Eventually(t, "it was looked for", func() bool { return locktest.ScriptsRun(t, direct) >= before+2 })
	if err := lock.Refresh(t.Context(), time.Minute, nil); err != nil {
		t.Errorf("their lock was disturbed: %v", err)
	}
}

// The server may execute an obtain after its undo, because redislock leaves no tombstone. If the
// process still receives the answer to the obtain, the process releases the lock.
func TestAnObtainThatIsExecutedLateIsGivenBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	direct := server.Client(t)
	l := newPolling(t, locktest.Through(t, server, proxy, sendOnce, func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	loadRedislock(t, direct)

	const key = "polling:late"
	held := proxy.HoldRequests(1, redislockCall(locker.OpAcquire, key))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	before := locktest.ScriptsRun(t, direct)
	_, err := l.Acquire(ctx, locker.Rule{Key: key})
	_ = locktest.WantErr(t, err, key, context.DeadlineExceeded)
	locktest.Eventually(t, "the undo has run", func() bool { return locktest.ScriptsRun(t, direct) >= before+2 }) // the undo obtains the lock and releases it
	if held.Hits() != 1 {
		t.Fatal("positive control: the obtain was not held back")
	}
	held.Lift()
	locktest.Eventually(t, "the late one was executed and given back", func() bool {
		return locktest.ScriptsRun(t, direct) >= before+4 && direct.Exists(t.Context(), key).Val() == 0
	})
}

// The answer to a release is lost. If the client is set up as the documentation of polling.New
// requires, Release does not report the lease as lost.
func TestALostAnswerToAPollingReleaseIsNoLoss(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	l := newPolling(t, server.Client(t, func(o *redis.Options) { o.Addr, o.MaxRetries = proxy.Addr(), -1 }))
	locktest.Release(t, locktest.Acquire(t, l, locker.Rule{Key: "warm"}))
	lease := locktest.Acquire(t, l, locker.Rule{Key: "a"})
	lost := proxy.LoseReplies(1, chaos.Command("EVALSHA"))
	if err := lease.Release(t.Context()); err != nil || lost.Hits() != 1 {
		t.Errorf("Release: %v, with %d answers lost", err, lost.Hits())
	}
}

func TestPollingHearsThatItsServerHasForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l, other := newPolling(t, client), newPolling(t, server.Client(t))
	lease := locktest.Acquire(t, l, locker.Rule{Key: "a", TTL: 2 * time.Second})
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	next := locktest.Acquire(t, other, locker.Rule{Key: "a", Wait: locker.NoWait})
	locktest.Lost(t, lease, locker.ErrLost)
	locktest.Release(t, next)
}

func TestAFullServerRefusesPollingAndLetsLeasesGo(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newPolling(t, client)
	lease := locktest.Acquire(t, l, locker.Rule{Key: "a", TTL: 4 * time.Second})
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "b"})
	_ = locktest.WantErr(t, err, "b", locker.ErrUnavailable)
	locktest.WantNot(t, err, locker.ErrBusy)
	first := lease.Expires()
	locktest.Eventually(t, "it is renewed", func() bool { return lease.Expires().After(first) })
	locktest.Release(t, lease)
	if _, err := redislock.Obtain(context.Background(), client, "a", time.Second, nil); err == nil {
		t.Error("positive control: the server is not full")
	}
	if client.Exists(t.Context(), "a").Val() != 0 {
		t.Error("the lease did not go")
	}
}

// A server that answers nothing costs a caller one second.
func TestACallerWhoGetsNoAnswerFromPollingIsBackAfterASecond(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newPolling(t, server.Client(t))
	server.Pause()
	start := time.Now()
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	took := time.Since(start)
	server.Resume()
	if !errors.Is(err, locker.ErrUnavailable) || took > time.Second+locktest.Slack {
		t.Errorf("back after %v with %v", took, err)
	}
}
