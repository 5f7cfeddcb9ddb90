package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// behind returns a client that reaches the server through a proxy with these restrictions.
func behind(t *testing.T, server *redistest.Server, limits redistest.Restrictions) (*redis.Client, *redistest.Restricted) {
	t.Helper()
	proxy := redistest.StartRestricted(t, server, limits)
	return server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr(); o.MaintNotificationsConfig = nil }), proxy
}

// warnings is an Observer that keeps the codes of warnings.
type warnings struct {
	mu    sync.Mutex
	codes []string
}

func (*warnings) Begin(ctx context.Context, _ locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, nil
}

func (w *warnings) Warn(warning locker.Warning) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.codes = append(w.codes, warning.Code)
}

func (w *warnings) count(code string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.codes {
		if c == code {
			n++
		}
	}
	return n
}

// A server may refuse each script whose text names commands for messages, and the function unpack.
// All kinds of Lockers work all the same: their waiters poll, in the order of the queue, and each
// Locker says so once.
func TestAServerWithoutMessagesInScriptsServesWaitersThatPoll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	limits := redistest.Restrictions{Words: []string{"pubsub", "publish", "unpack", "subscribe"}}
	client, proxy := behind(t, server, limits)
	for name, open := range map[string]func(o locker.SingleOption) (*locker.Engine, error){
		"one owner": func(o locker.SingleOption) (*locker.Engine, error) { return locker.New(client, o) },
		"readers":   func(o locker.SingleOption) (*locker.Engine, error) { return locker.NewReadWrite(client, o) },
		"permits":   func(o locker.SingleOption) (*locker.Engine, error) { return locker.NewSemaphore(client, 1, o) },
	} {
		var seen [2]warnings
		var pair [2]*locker.Engine
		for i := range pair {
			l, err := open(locker.WithObserver(&seen[i]))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			pair[i] = l
		}
		key := "order:" + name
		holder := acquire(t, pair[0], locker.Rule{Key: key})
		waiter := queues(t, pair[1], locker.Rule{Key: key}, server.Client(t))
		release(t, holder)
		release(t, waiter.Granted(5*time.Second))
		release(t, acquire(t, pair[1], locker.Rule{Key: key}))
		if seen[0].count("no-messages") != 1 || seen[1].count("no-messages") != 1 {
			t.Errorf("%s: warnings %v and %v", name, seen[0].codes, seen[1].codes)
		}
		if polls := pollsOf(t, pair[1]); !strings.Contains(polls, "forbids messages") {
			t.Errorf("%s: Nodes says %q", name, polls)
		}
	}
	if n := proxy.Subscriptions.Load(); n != 0 {
		t.Errorf("%d subscriptions to messages that nobody sends", n)
	}
}

// pollsOf returns what Nodes says about the waiters of l, which has one server.
func pollsOf(t *testing.T, l *locker.Engine) string {
	t.Helper()
	nodes, err := l.Nodes(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].State != store.NodeVotes {
		t.Fatal(nodes, err)
	}
	return nodes[0].Polls
}

// Nodes says why waiters poll as soon as the server has refused a subscription.
func TestNodesSaysWhyWaitersPoll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	if err := admin.Do(t.Context(), "acl", "setuser", "default", "-subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	l := newSingle(t, server.Client(t))
	release(t, acquire(t, l, locker.Rule{Key: "order:2"}))
	holder := acquire(t, newSingle(t, server.Client(t)), locker.Rule{Key: "order:1"})
	if polls := pollsOf(t, l); polls != "" {
		t.Errorf("nobody waits: %q", polls)
	}
	waiter := queues(t, l, locker.Rule{Key: "order:1"}, admin)
	if polls := pollsOf(t, l); !strings.Contains(polls, "allow SUBSCRIBE") {
		t.Errorf("forbidden: %q", polls)
	}
	release(t, holder)
	release(t, waiter.Granted(5*time.Second))
}

// Both sets of scripts are made of the same files. No script without messages contains a word that
// a hosted server refuses.
func TestTheScriptsWithoutMessagesNameNoMessages(t *testing.T) {
	found := 0
	for name, text := range redisstore.ScriptTexts {
		for _, word := range []string{"unpack", "loadstring", "pubsub", "publish"} {
			names := strings.Contains(strings.ToLower(text), word)
			if strings.HasSuffix(name, "_silent") && names || word == "unpack" && names {
				t.Errorf("%s names %s", name, word)
			}
		}
		if strings.HasSuffix(name, "_silent") {
			found++
			ordinary := redisstore.ScriptTexts[strings.TrimSuffix(name, "_silent")]
			if !strings.Contains(ordinary, "'PUBLISH'") {
				t.Errorf("positive control: %s sends no messages", name)
			}
		}
	}
	if found != 8 {
		t.Errorf("%d scripts without messages", found)
	}
}

// Where a server has less than Redis, the first acquire works, or fails at once with an error that
// says what to use.
func TestTheFirstAcquireOnARestrictedServerWorksOrSaysWhatToUse(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	single := func(c *redis.Client) (*locker.Engine, error) { return locker.New(c) }
	acked := func(c *redis.Client) (*locker.Engine, error) {
		return locker.New(c, locker.WithReplicaAck(1, 100*time.Millisecond))
	}
	for name, tc := range map[string]struct {
		refused []string
		open    func(*redis.Client) (*locker.Engine, error)
		want    string // a part of the error; "": the acquire works
	}{
		"no EVALSHA":           {[]string{"evalsha", "script"}, single, ""},
		"no INFO, TIME, WAIT":  {[]string{"info", "time", "wait", "client", "config", "command", "hello"}, single, ""},
		"no messages":          {[]string{"subscribe", "publish", "pubsub"}, single, ""},
		"no scripts":           {[]string{"eval", "evalsha", "script"}, single, "locker.NewScriptless"},
		"no scripts, no need":  {[]string{"eval", "evalsha", "script"}, func(c *redis.Client) (*locker.Engine, error) { return locker.NewScriptless(c) }, ""},
		"no WAIT for replicas": {[]string{"wait"}, acked, "WithReplicaAck"},
	} {
		client, proxy := behind(t, server, redistest.Restrictions{Commands: tc.refused})
		l, err := tc.open(client)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		began := time.Now()
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: "order:" + name, Wait: time.Minute})
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.want == "":
			release(t, lease)
		case err == nil || !strings.Contains(err.Error(), tc.want) || time.Since(began) > 30*time.Second:
			t.Errorf("%s: %v after %v, want %s", name, err, time.Since(began), tc.want)
		}
		if slices.Contains(tc.refused, "evalsha") && tc.want == "" && name == "no EVALSHA" && proxy.Sent("eval") == 0 {
			t.Errorf("%s: positive control: no EVAL", name)
		}
	}
}

// Behind some proxies, subscriptions are on another server than the scripts. Waiters then poll, and
// do not subscribe again and again.
func TestSubscriptionsOnAnotherServerMakeWaitersPoll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, proxy := behind(t, server, redistest.Restrictions{Channels: redistest.Start(t)})
	var seen warnings
	l, err := locker.New(client, locker.WithObserver(&seen))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	holder := acquire(t, newSingle(t, server.Client(t)), locker.Rule{Key: "order:1"})
	waiter := queues(t, l, locker.Rule{Key: "order:1"}, server.Client(t))
	locktest.Eventually(t, "the Locker says that it polls", func() bool { return seen.count("no-messages") == 1 })
	if polls := pollsOf(t, l); !strings.Contains(polls, "see no subscriber") {
		t.Errorf("Nodes says %q", polls)
	}
	release(t, holder)
	release(t, waiter.Granted(10*time.Second))
	if n := proxy.Subscriptions.Load(); n < 1 || n > 5 {
		t.Errorf("%d subscriptions", n)
	}
}

// A server may close connections on which no command came for some time. A waiter still gets the
// key soon.
func TestIdleConnectionsThatAreCutDelayNoWaiter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, _ := behind(t, server, redistest.Restrictions{Idle: 200 * time.Millisecond})
	holder := acquire(t, newSingle(t, client), locker.Rule{Key: "order:1", TTL: 4 * time.Second})
	waiter := queues(t, newSingle(t, client), locker.Rule{Key: "order:1"}, server.Client(t))
	ping := server.Client(t)
	held := time.Now()
	locktest.Eventually(t, "the lease outlives its TTL, and each connection was cut", func() bool {
		return ping.Ping(t.Context()).Err() == nil && time.Since(held) > 5*time.Second
	})
	release(t, holder)
	release(t, waiter.Granted(2*time.Second))
}

// An error of a script that has run is no refusal of its text, so that a Store does not give up
// messages because a slot moves or an operator ends a script.
func TestOnlyARefusalOfTheTextEndsTheUseOfMessages(t *testing.T) {
	for text, want := range map[string]bool{
		"ERR bad lua script for redis cluster, publish is not allowed":                                   true,
		"ERR This Redis command is not allowed from scripts":                                             true,
		"ERR Script attempted to access a non local key in a cluster node script: abc":                   false,
		"ERR Error running script (call to f_abc): @user_script:3: ERR value is not an integer":          false,
		"ERR Script killed by user with SCRIPT KILL.":                                                    false,
		"ERR ACL failure in script: User locks has no permissions to run the 'set' command script: abc":  false,
		"READONLY You can't write against a read only replica script: abc, on @user_script:1.":           false,
		"ERR latchkit: the fence counter of a key is at 2^53 or above, so fences would repeat script: a": false,
		"ERR unknown command 'evalsha'":                                                                  false,
	} {
		if got := redisstore.RefusesText(serverError(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// A proxy before several shards, to which a plain client leads, refuses scripts with keys of
// several slots. Many leases of all kinds outlive their TTL behind it, with one refusal, and many
// callers lock at the same time.
func TestLeasesBehindAProxyToSeveralShardsAreRenewed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	refused := redistest.Restrictions{Slot: redisstore.SlotOf}
	for name, open := range map[string]func(c *redis.Client, o locker.SingleOption) (*locker.Engine, error){
		"one owner": func(c *redis.Client, o locker.SingleOption) (*locker.Engine, error) { return locker.New(c, o) },
		"readers":   func(c *redis.Client, o locker.SingleOption) (*locker.Engine, error) { return locker.NewReadWrite(c, o) },
		"permits": func(c *redis.Client, o locker.SingleOption) (*locker.Engine, error) {
			return locker.NewSemaphore(c, 1, o)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, _ := behind(t, server, refused)
			const ttl = 5 * time.Second
			l, err := open(client, locker.WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			leases, errs := make([]*locker.Lease, 100), make([]error, 100)
			var all sync.WaitGroup
			for i := range leases {
				all.Go(func() {
					for range 5 { // a busy machine may need long for all of them at once
						leases[i], errs[i] = l.Acquire(t.Context(), locker.Rule{Key: fmt.Sprint(name, i)})
						if !errors.Is(errs[i], locker.ErrUnavailable) {
							return
						}
					}
				})
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * ttl) //nolint:forbidigo // the promise: nothing happens in this time
			for _, lease := range leases {
				if err := context.Cause(lease.Context()); err != nil {
					t.Errorf("%s: %v", lease.Key(), err)
				}
				release(t, lease)
			}
		})
	}
}
