package locker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestNewSingleRefusesANilClient(t *testing.T) {
	for _, c := range []locker.Client{nil, (*redis.Client)(nil)} {
		if _, err := locker.New(c); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Fatal(err)
		}
	}
}

// holder is a process that acquires a key, holds it until its lease ends, and prints what
// happens. The lease has a TTL of one second.
var holder = proc.Register("holder", func(args []string) {
	client := redis.NewClient(&redis.Options{Addr: args[0]})
	l, err := locker.New(client)
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	lease, err := l.Acquire(context.Background(), locker.Rule{Key: args[1], TTL: time.Second})
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("held", lease.Fence())
	<-lease.Context().Done()
	cause := context.Cause(lease.Context())
	fmt.Println("ended", errors.Is(cause, locker.ErrLost), cause)
	fmt.Println("released", errors.Is(lease.Release(context.Background()), locker.ErrLost))
})

func TestAPausedHolderLearnsThatItLostAndHarmsNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	l := newSingle(t, server.Client(t))
	const key = "paused:holder"
	child := holder.Start(t, server.Addr(), key)
	var fence uint64
	if _, err := fmt.Sscan(child.Expect(t, "held"), &fence); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait}); !errors.Is(err, locker.ErrBusy) {
		t.Fatalf("positive control: the child does not hold the key: %v", err)
	}
	child.Pause()
	lease := acquire(t, l, locker.Rule{Key: key, Wait: 15 * time.Second})
	if lease.Fence() <= fence {
		t.Fatalf("fence %d after %d", lease.Fence(), fence)
	}
	child.Resume()
	if got := child.Expect(t, "ended"); !strings.HasPrefix(got, "true") {
		t.Fatalf("the holder's context ended with %s", got)
	}
	if got := child.Expect(t, "released"); got != "true" {
		t.Fatal("its release is not ErrLost")
	}
	if i, err := l.Inspect(t.Context(), key); err != nil || i.Fence != lease.Fence() {
		t.Fatalf("the new holder is gone: %+v %v", i, err)
	}
	release(t, lease)
}

func TestAKilledHoldersLeaseRunsOut(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	l := newSingle(t, server.Client(t))
	child := holder.Start(t, server.Addr(), "killed:holder")
	child.Expect(t, "held")
	child.Kill()
	release(t, acquire(t, l, locker.Rule{Key: "killed:holder", Wait: 15 * time.Second}))
}

// The server stalls for longer than go-redis's read time-out. So calls time out, but the server
// executes them later, because they wait in its sockets.
func TestAnAcquireDuringAStallReturnsInTimeAndLeavesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	l := newSingle(t, client)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))

	server.Pause()
	stalled := time.Now()
	for i := range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		_, err := l.Acquire(ctx, locker.Rule{Key: fmt.Sprint("stalled:", i)})
		if d := time.Since(start); d > 2500*time.Millisecond {
			t.Errorf("returned after %v", d)
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, locker.ErrUnavailable) || errors.Is(err, locker.ErrBusy) {
			t.Errorf("%v", err)
		}
	}
	// Wait until the stall has had its full length, because the test depends on this length.
	<-time.After(10*time.Second - time.Since(stalled))
	server.Resume()

	c := server.Client(t)
	eventually(t, "all abandoned acquires are undone", func() bool {
		return len(c.Keys(t.Context(), "stalled:*").Val()) == 0 && len(c.Keys(t.Context(), "latchkit:x:*").Val()) == 5
	})
	eventually(t, "no late execution takes a key", func() bool { return c.Ping(t.Context()).Err() == nil })
	if left := c.Keys(t.Context(), "stalled:*").Val(); len(left) != 0 {
		t.Fatal(left)
	}
}

func TestTenThousandCyclesLeaveNothing(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	l, err := locker.New(client)
	if err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	before := runtime.NumGoroutine()

	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 1250 {
				rule := locker.Rule{Key: fmt.Sprintf("cycle:%d", (w+i)%5), TTL: 10 * time.Second}
				ctx, cancel := context.WithCancel(t.Context())
				switch i % 4 {
				case 0: // the context ends at a random moment of the call
					time.AfterFunc(time.Duration(i%100)*10*time.Microsecond, cancel)
				case 1:
					rule.Wait = locker.NoWait
				case 2:
					rule.Wait = time.Millisecond
				}
				if lease, err := l.Acquire(ctx, rule); err == nil {
					if err := lease.Release(ctx); err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, context.Canceled) && !errors.Is(err, locker.ErrBusy) && !errors.Is(err, locker.ErrUnavailable) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}

	eventually(t, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
	for _, key := range client.Keys(t.Context(), "*").Val() {
		switch ttl := client.PTTL(t.Context(), key).Val(); {
		case strings.HasPrefix(key, "cycle:"):
			t.Errorf("lease %s is left", key)
		case strings.HasPrefix(key, "latchkit:f:"):
		case ttl < 0:
			t.Errorf("%s has no TTL", key)
		}
	}
	if channels := client.PubSubChannels(t.Context(), "*").Val(); len(channels) != 0 {
		t.Errorf("subscriptions are left: %v", channels)
	}
}

func TestFencesGrowAlsoWhenTheServerForgets(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newSingle(t, server.Client(t))
	var last uint64
	for range 3 {
		lease := acquire(t, l, locker.Rule{Key: "a", Wait: 10 * time.Second})
		if lease.Fence() <= last {
			t.Fatalf("fence %d after %d", lease.Fence(), last)
		}
		last = lease.Fence()
		release(t, lease)
		server.Restart() // after the restart, the server is empty
	}
}

func TestARestartThatForgetsTheLeaseIsALoss(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newSingle(t, server.Client(t))
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: 3 * time.Second})
	server.Restart()
	lost(t, lease, locker.ErrLost)
}

func TestAServerThatIsDownIsUnavailable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newSingle(t, server.Client(t))
	server.Kill()
	for _, wait := range []time.Duration{locker.NoWait, 100 * time.Millisecond, 0} {
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: wait})
		wantErr(t, err, "a", locker.ErrUnavailable)
		wantNot(t, err, locker.ErrBusy)
	}
	if _, err := l.Inspect(t.Context(), "a"); !errors.Is(err, locker.ErrUnavailable) {
		t.Fatal(err)
	}
	server.Restart()
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
}

func TestAWrongPasswordSaysSoAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if err := server.Client(t).ConfigSet(t.Context(), "requirepass", "right").Err(); err != nil {
		t.Fatal(err)
	}
	for _, password := range []string{"wrong", ""} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: password})
		defer client.Close()
		_, err := newSingle(t, client).Acquire(t.Context(), locker.Rule{Key: "a"})
		wantErr(t, err, "a", locker.ErrUnavailable)
		if !strings.Contains(err.Error(), "password") {
			t.Fatal(err)
		}
	}
}

// While the password is wrong, releases fail. When it is right again, the keys become free, and not
// only when the TTLs are over.
func TestAPasswordThatIsWrongForAMomentKeepsNoKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	opened, err := locker.Open("redis://locks:right@" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close(context.Background()) })
	user := func(password string) {
		t.Helper()
		if err := admin.Do(t.Context(), "acl", "setuser", "locks", "reset", "on", ">"+password, "~*", "&*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
	}
	user("right")
	given := newSingle(t, server.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "right" }))
	for name, l := range map[string]*locker.Engine{"Open": opened, "New": given} {
		lease := acquire(t, l, locker.Rule{Key: name, TTL: 2 * time.Minute})
		user("wrong")
		if err := admin.ClientKillByFilter(t.Context(), "user", "locks").Err(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, lease.Release(t.Context()), name, locker.ErrUnavailable)
		time.Sleep(300 * time.Millisecond) //nolint:forbidigo // the outage itself
		user("right")
		locktest.Eventually(t, "the key of "+name+" is free", func() bool { return admin.Exists(t.Context(), name).Val() == 0 })
	}
}

func TestAReadOnlyReplicaIsUnavailableAndSaysNothingFalse(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newSingle(t, client)
	lease := acquire(t, l, locker.Rule{Key: "a"})
	// The server becomes a replica of an address without a server, so its data does not change.
	if err := client.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	wantErr(t, err, "a", locker.ErrUnavailable)
	wantNot(t, err, locker.ErrBusy)
	backend := locktest.SingleStore(client) // the lease may be missing on a replica that lags, so the replica's answer "no" would be wrong
	stranger := store.Claim{Key: "a", Owner: strings.Repeat("S", 26), TTL: time.Minute}
	_, renewed := backend.Renew(t.Context(), []store.Claim{stranger})
	_, released := backend.Release(t.Context(), stranger)
	_, broken := store.CapabilitiesOf(backend).Revoke(t.Context(), "a", lease.Fence(), "drill")
	for _, err := range []error{renewed, released, broken} {
		if no, ok := errors.AsType[*store.Refusal](err); !ok || !no.Temporary {
			t.Errorf("a replica answered %v", err)
		}
	}
	err = lease.Release(t.Context())
	wantErr(t, err, "a", locker.ErrUnavailable)
	wantNot(t, err, locker.ErrLost)
	if err := client.Do(t.Context(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the release went on in the background", func() bool { return client.Exists(t.Context(), "a").Val() == 0 })
}

func TestAFullServerRefusesAcquiresAndLetsLeasesGo(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newSingle(t, client)
	rules := map[string]locker.Rule{
		"plain": {Key: "plain", TTL: 4 * time.Second}, "kept": {Key: "kept", KeepFor: 20 * time.Second},
		"once": {Key: "once", OnceFor: time.Minute},
	}
	leases := map[string]*locker.Lease{}
	for name, rule := range rules {
		leases[name] = acquire(t, l, rule)
	}
	expires := leases["plain"].Expires()
	if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "more"})
	wantErr(t, err, "more", locker.ErrUnavailable)
	wantNot(t, err, locker.ErrBusy)
	if !strings.Contains(err.Error(), "memory") {
		t.Fatal(err)
	}
	eventually(t, "renewals pass on a full server", func() bool { return leases["plain"].Expires().After(expires) })
	for name, lease := range leases {
		if err := lease.Complete(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v := client.Get(t.Context(), "kept").Val(); !strings.HasPrefix(v, "kept:") {
		t.Errorf("the key is not kept: %q", v)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), rules["once"]); !errors.Is(err, locker.ErrDone) {
		t.Error(err)
	}
}

func TestForeignDataStays(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client)
	client.Del(t.Context(), "foreign:list", "foreign:lock")
	client.Del(t.Context(), "foreign:list") // an earlier run may have left this key
	client.RPush(t.Context(), "foreign:list", 1, 2, 3)
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "foreign:list"})
	wantErr(t, err, "foreign:list", locker.ErrInvalidKey)
	wantNot(t, err, locker.ErrBusy)
	if client.LLen(t.Context(), "foreign:list").Val() != 3 {
		t.Fatal("the list was touched")
	}
	client.Set(t.Context(), "foreign:lock", "somebody:else", 0)
	if i, err := l.Inspect(t.Context(), "foreign:lock"); err != nil || !i.Foreign || i.Left >= 0 || i.Fence != 0 {
		t.Fatalf("%+v %v", i, err)
	}
	wantErr(t, l.Revoke(t.Context(), "foreign:lock", 0, "drill"), "foreign:lock", locker.ErrUnsupported)
	if client.Get(t.Context(), "foreign:lock").Val() != "somebody:else" {
		t.Fatal("the foreign lock was touched")
	}
}

func TestScriptsThatTheServerForgotAreSentAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newSingle(t, client)
	for range 50 {
		lease := acquire(t, l, locker.Rule{Key: "a", Wait: locker.NoWait})
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		release(t, lease)
		client.ScriptFlush(t.Context())
	}
}

func TestAnEvictionPolicyThatDropsLocksIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	client := server.Client(t, endCallsWithContext)
	var rec *lockertest.Recorder
	// A Locker asks the server once, and says nothing if the answer is late. Then the next one asks.
	eventually(t, "the server has answered in time", func() bool {
		rec = new(lockertest.Recorder)
		l, err := locker.New(client, locker.WithObserver(rec))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			release(t, acquire(t, l, locker.Rule{Key: "a"}))
		}
		if err := l.Close(t.Context()); err != nil { // Close waits until the warnings have been delivered
			t.Fatal(err)
		}
		return len(rec.Warnings()) > 0
	})
	if w := rec.Warnings(); len(w) != 1 || w[0].Code != "eviction-policy" || !strings.Contains(w[0].Text, "noeviction") {
		t.Fatalf("%+v", w)
	}
}

func TestASafeServerIsNotWarnedOf(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--maxmemory", "100mb", "--maxmemory-policy", "noeviction"}} {
		backend := store.CapabilitiesOf(locktest.SingleStore(redistest.Start(t, args...).Client(t, endCallsWithContext)))
		if w := backend.CheckServer(t.Context()); len(w) != 0 {
			t.Fatalf("%+v", w)
		}
	}
}

func TestInspectBreakAndRaiseFence(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client, locker.WithMetadata(func(context.Context) string { return "worker-7" }))
	const key = "inspect:me"
	start := time.Now()
	lease := acquire(t, l, locker.Rule{Key: key})
	i, err := l.Inspect(t.Context(), key)
	if err != nil || i.Metadata != "worker-7" || i.Fence != lease.Fence() || i.Since.Before(start.Add(-time.Second)) || i.Since.After(time.Now().Add(time.Second)) {
		t.Fatalf("%+v %v", i, err)
	}
	if err := l.Revoke(t.Context(), key, i.Fence, "drill"); err != nil {
		t.Fatal(err)
	}
	wantErr(t, lease.Release(t.Context()), key, locker.ErrRevoked)

	least := i.Fence + 20_000_000 // only 20 s ahead of the clock, because other keys use the same counter
	if err := l.RaiseFence(t.Context(), key, least); err != nil {
		t.Fatal(err)
	}
	lease = acquire(t, l, locker.Rule{Key: key})
	if lease.Fence() <= least {
		t.Fatalf("fence %d after raising to %d", lease.Fence(), least)
	}
	if i, _ := l.Inspect(t.Context(), key); !i.Since.IsZero() {
		t.Fatal("Since is set although the counter is ahead of the clock")
	}
	release(t, lease)
	wantErr(t, l.RaiseFence(t.Context(), key, 1<<60), key, locker.ErrUnsupported)
	for _, err := range []error{l.Revoke(t.Context(), "", 1, ""), l.RaiseFence(t.Context(), "latchkit:x", 1)} {
		if !errors.Is(err, locker.ErrInvalidKey) {
			t.Fatal(err)
		}
	}
}

func TestTokensStayOutOfErrors(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client)
	lease := acquire(t, l, locker.Rule{Key: "token:secret"})
	token, _, _ := strings.Cut(client.Get(t.Context(), "token:secret").Val(), ":")
	if len(token) != 26 {
		t.Fatalf("token of %d letters", len(token))
	}
	_, busy := l.Acquire(t.Context(), locker.Rule{Key: "token:secret", Wait: locker.NoWait})
	client.Del(t.Context(), "token:secret")
	gone := lease.Release(t.Context())
	for _, err := range []error{busy, gone, context.Cause(lease.Context())} {
		if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, token) {
			t.Fatalf("%v shows the token", err)
		}
	}
	if text := fmt.Sprintf("%v %+v", lease, lease); strings.Contains(text, token) {
		t.Fatalf("a printed lease shows the token: %s", text)
	}
}

func TestDataOfAnotherTypeAtOneKeyConcernsNoOther(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newSingle(t, client)
	var leases []*locker.Lease
	for i := range 3 {
		leases = append(leases, acquire(t, l, locker.Rule{Key: fmt.Sprint("batch:", i), TTL: 4 * time.Second}))
	}
	client.Del(t.Context(), "batch:1")
	client.HSet(t.Context(), "batch:1", "field", "value")
	lost(t, leases[1], locker.ErrLost)
	first := leases[0].Expires()
	eventually(t, "the others are renewed", func() bool { return leases[0].Expires().After(first.Add(time.Second)) })
	release(t, leases[0])
	release(t, leases[2])
	if client.HGet(t.Context(), "batch:1", "field").Val() != "value" {
		t.Fatal("the data is gone")
	}
}

func TestNewSingleRefusesARing(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _ = ring.Close() })
	if _, err := locker.New(ring); err == nil || !strings.Contains(err.Error(), "one server") {
		t.Error(err)
	}
}

// endCallsWithContext makes go-redis end a call when its context ends.
func endCallsWithContext(o *redis.Options) { o.ContextTimeoutEnabled = true }
