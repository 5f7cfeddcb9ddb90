package rueidisclient_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/latchkit/latchkit/contrib/rueidisclient"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// patient makes waiters depend on messages: without a message, a waiter asks again only after an
// hour.
var patient = locker.WithBackoff(locker.Exponential(time.Hour, time.Hour))

func TestAWaiterIsNotifiedThroughRueidis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	holder, waiter := single(t, server), single(t, server)
	rule := locker.Rule{Key: "a"}
	for range 3 {
		lease := locktest.Acquire(t, holder, rule)
		w := locktest.Queues(t, waiter, rule, server.Client(t))
		w.WaitsStill()
		locktest.Release(t, lease)
		locktest.Release(t, w.Granted(0))
	}
}

func TestASubscriptionThatTheServerEndsIsReplaced(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	holder, waiter := single(t, server), single(t, server)
	rule := locker.Rule{Key: "a"}
	lease := locktest.Acquire(t, holder, rule)
	w := locktest.Queues(t, waiter, rule, client)
	channels := func() int { return len(client.PubSubChannels(t.Context(), "*").Val()) }
	locktest.Eventually(t, "the waiter listens", func() bool { return channels() == 1 })
	if n := client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Val(); n != 1 {
		t.Fatalf("%d subscriptions were ended, want 1", n)
	}
	locktest.Eventually(t, "the waiter listens again", func() bool { return channels() == 1 })
	w.WaitsStill()
	locktest.Release(t, lease)
	locktest.Release(t, w.Granted(0))
}

// The user that docs/operations.md describes can lock through rueidis, without client-side caching.
func TestTheDocumentedUserThroughRueidis(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "ACL SETUSER locks ")
	list, _, _ = strings.Cut(list, "```")
	words := []any{"acl", "setuser", "locks"}
	for word := range strings.FieldsSeq(list) {
		words = append(words, word)
	}
	server := redistest.Start(t)
	if err := server.Client(t).Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(err)
	}
	o := rueidis.ClientOption{InitAddress: []string{server.Addr()}, Username: "locks", Password: "secret"}
	if _, err := rueidis.NewClient(o); err == nil || !strings.Contains(err.Error(), "client|tracking") {
		t.Errorf("with the cache: %v", err)
	}
	o.DisableCache = true
	c, err := rueidis.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	client, err := rueidisclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	rule := locker.Rule{Key: "order:1"}
	for name, l := range map[string]*locker.Engine{"single": locktest.Single(t, client, patient), "permits": locktest.Semaphore(t, client, 1, patient)} {
		lease := locktest.Acquire(t, l, rule)
		if err := lease.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		locktest.Release(t, lease)
	}
}

func TestCallsOfManyCallersShareAConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := single(t, server)
	const callers, each = 50, 20
	ended := make(chan error)
	for i := range callers {
		go func() {
			var err error
			for n := 0; n < each && err == nil; n++ {
				err = locker.Run(t.Context(), l, locker.Rule{Key: "key:" + string(rune('A'+i))}, func(context.Context) error { return nil })
			}
			ended <- err
		}()
	}
	for range callers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	// rueidis uses up to four connections for commands, and opens one more before it knows the
	// server.
	clients := server.Client(t).Info(t.Context(), "clients").Val()
	_, after, _ := strings.Cut(clients, "connected_clients:")
	if n, _, _ := strings.Cut(after, "\r"); len(n) != 1 {
		t.Errorf("%s connections for %d callers", n, callers)
	}
}

func TestErrorsOfTheServerKeepTheirCode(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	raw := connect(t, server.Addr())
	c, err := rueidisclient.New(raw)
	if err != nil {
		t.Fatal(err)
	}
	for want, words := range map[string][]any{
		"ERR unknown command": {"nonsense"},
		"NOSCRIPT":            {"evalsha", strings.Repeat("0", 40), 0},
	} {
		err := c.Process(t.Context(), redis.NewStringCmd(t.Context(), words...))
		if !redis.HasErrorPrefix(err, strings.TrimPrefix(want, "ERR ")) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: %v, want %s", words, err, want)
		}
	}
	for want, words := range map[string][]any{"": {"get", "nothing"}, "1": {"incr", "one"}, "OK": {"set", "a", "b"}} {
		cmd := redis.NewStringCmd(t.Context(), words...)
		if err := c.Process(t.Context(), cmd); err != nil && err != redis.Nil || cmd.Val() != want || (err == redis.Nil) != (want == "") {
			t.Errorf("%v: %q %v", words, cmd.Val(), err)
		}
	}
	if err := c.Process(t.Context(), redis.NewIntCmd(t.Context(), "incr", "one")); err == nil {
		t.Error("a command whose answer is no string was taken")
	}
	if err := c.Process(t.Context(), redis.NewStringCmd(t.Context(), "set", "a", 1.5)); err == nil {
		t.Error("a word that is no string and no integer was taken")
	}
	raw.Close()
	if err := c.Process(t.Context(), redis.NewStringCmd(t.Context(), "get", "a")); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("a client that is closed: %v, want the error of go-redis", err)
	}
	l, err := locker.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Acquire(t.Context(), locker.Rule{Key: "a"})
	_ = locktest.WantErr(t, err, "a", locker.ErrUnavailable)
}

func TestClientsThatCannotLockAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := rueidisclient.New(nil); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("no client: %v", err)
	}
	cluster := redistest.StartCluster(t)
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: cluster.Addrs(), DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := rueidisclient.New(c); err == nil || !strings.Contains(err.Error(), "redis.ClusterClient") {
		t.Errorf("a client of a Cluster: %v", err)
	}
	one, err := rueidisclient.New(connect(t, redistest.Shared(t).Addr()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.New(one, locker.WithReplicaAck(1, time.Second)); err == nil {
		t.Error("WithReplicaAck was taken")
	}
}

func TestSentinelThroughRueidis(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t)
	raw, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: set.Addrs(), Sentinel: rueidis.SentinelOption{MasterSet: redistest.SentinelName}, DisableCache: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	c, err := rueidisclient.New(raw)
	if err != nil {
		t.Fatal(err)
	}
	if !c.FailsOver() {
		t.Error("the Locker is not told that the server may change")
	}
	l := locktest.Single(t, c)
	before := locktest.Acquire(t, l, locker.Rule{Key: "a"})
	locktest.Release(t, before)
	set.Servers[0].Kill()
	set.Promoted(t)
	locktest.Eventually(t, "the promoted server grants the key", func() bool {
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
		if err != nil {
			return false
		}
		if lease.Fence() <= before.Fence() {
			t.Errorf("the fence %d comes after %d", lease.Fence(), before.Fence())
		}
		locktest.Release(t, lease)
		return true
	})
}

func TestAQuorumThroughRueidis(t *testing.T) {
	t.Parallel()
	var cs []locker.Client
	for range 3 {
		c, err := rueidisclient.New(connect(t, redistest.Start(t).Addr()))
		if err != nil {
			t.Fatal(err)
		}
		cs = append(cs, c)
	}
	if err := locker.EnrollRedlock(t.Context(), cs); err != nil {
		t.Fatal(err)
	}
	l, err := locker.NewRedlock(cs)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.Acquire(t, l, locker.Rule{Key: "a"})
	w := locktest.Asks(t, l, locker.Rule{Key: "a"})
	locktest.Release(t, lease)
	locktest.Release(t, w.Granted(time.Second))
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// single makes a Locker that has its own rueidis client.
func single(t *testing.T, server *redistest.Server) *locker.Engine {
	t.Helper()
	c, err := rueidisclient.New(connect(t, server.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	return locktest.Single(t, c, patient)
}
