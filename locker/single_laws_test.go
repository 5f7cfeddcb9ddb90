package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestSingleObeysTheLaws(t *testing.T) {
	lockertest.Run(t, func(t *testing.T) lockertest.Harness {
		server := redistest.Shared(t)
		direct := server.Client(t)
		proxy := chaos.NewProxy(t, server.Addr())
		client := through(t, server, proxy)
		clients := make(map[locker.Store]*redis.Client)
		return lockertest.Harness{
			Store: locker.SingleStore(client),
			Can:   lockertest.All,
			LoseReply: func(t testing.TB, op locker.Op, key string) {
				loadScripts(t, client)
				lost := proxy.LoseReplies(1, scriptCall(op, key))
				t.Cleanup(func() {
					if lost.Hits() != 1 {
						t.Errorf("%d answers were lost, the law needs one", lost.Hits())
					}
				})
			},
			Another: func(t testing.TB) locker.Store {
				c := redis.NewClient(&redis.Options{Addr: server.Addr()}) // Kill closes it, and a second Close is none
				t.Cleanup(func() { c.Close() })
				s := locker.SingleStore(c)
				clients[s] = c
				return s
			},
			Kill: func(t testing.TB, s locker.Store) {
				channel := locker.Kill(s)
				for direct.PubSubNumSub(t.Context(), channel).Val()[channel] != 0 {
					if t.Context().Err() != nil {
						t.Fatal("somebody listens there still")
					}
				}
				if err := clients[s].Close(); err != nil {
					t.Fatal(err)
				}
			},
			Queued: func(t testing.TB, key string) int {
				return int(direct.ZCard(t.Context(), locker.QueueOf(key)).Val())
			},
			Occupy: func(t testing.TB, key string, ttl time.Duration) {
				if err := direct.Set(t.Context(), key, "QkZ:redislock/other==", ttl).Err(); err != nil {
					t.Fatal(err)
				}
			},
			Spoil: func(t testing.TB, key string) func() bool {
				if err := direct.HSet(t.Context(), key, "field", "value").Err(); err != nil {
					t.Fatal(err)
				}
				return func() bool { return direct.HGet(context.Background(), key, "field").Val() == "value" }
			},
		}
	})
}

// through is a client whose connections go through the proxy.
func through(t *testing.T, server *redistest.Server, proxy *chaos.Proxy) *redis.Client {
	return server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
}

// scriptsRun is how many scripts the server has executed.
func scriptsRun(t *testing.T, c *redis.Client) int {
	t.Helper()
	_, line, _ := strings.Cut(c.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha:calls=")
	n := 0
	_, _ = fmt.Sscan(strings.Split(line, ",")[0], &n)
	return n
}

// scriptCall matches the EVALSHA of one step on one key.
func scriptCall(op locker.Op, key string) chaos.Match {
	name := map[locker.Op]string{locker.OpAcquire: "acquire", locker.OpRenew: "renew", locker.OpRelease: "release"}[op]
	sha := locker.ScriptSHA(name)
	return func(request []byte) bool {
		return strings.Contains(string(request), sha) && strings.Contains(string(request), key)
	}
}

// loadScripts makes the server know the scripts, so that no NOSCRIPT comes between.
func loadScripts(t testing.TB, client *redis.Client) {
	t.Helper()
	for _, text := range locker.ScriptText {
		if err := client.ScriptLoad(t.Context(), text).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// Not go-redis, but the Engine repeats a call: go-redis' own three retries would execute a script up to four times.
func TestEveryScriptIsSentOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := through(t, server, proxy)
	store := locker.SingleStore(client)
	loadScripts(t, client)
	claim := locker.Claim{Key: "once:sent", Owner: strings.Repeat("T", 26), TTL: time.Minute}
	handed := claim
	handed.Handed = true

	for name, call := range map[string]func() error{
		"acquire": func() error { _, err := store.Acquire(t.Context(), claim); return err },
		"renew":   func() error { _, err := store.Renew(t.Context(), []locker.Claim{claim}); return err },
		"confirm": func() error { _, err := store.Renew(t.Context(), []locker.Claim{handed}); return err },
		"release": func() error { _, err := store.Release(t.Context(), claim); return err },
		"inspect": func() error { _, err := store.(locker.Inspector).Inspect(t.Context(), claim.Key); return err },
		"raise":   func() error { return store.(locker.Fencer).RaiseFence(t.Context(), claim.Key, 1) },
	} {
		proxy.ResetCommands()
		lost := proxy.LoseReplies(chaos.Every, chaos.Command("EVALSHA"))
		err := call()
		if no, ok := errors.AsType[*locker.Refusal](err); err == nil || ok {
			t.Errorf("%s: %v %v, want an unclear error", name, err, no)
		}
		if n := proxy.Commands()["EVALSHA"]; n != 1 || lost.Hits() != 1 {
			t.Errorf("%s was sent %d times", name, n)
		}
		lost.Lift()
	}
	proxy.ResetCommands()
	lost := proxy.LoseReplies(chaos.Every, chaos.Command("GET"))
	_ = client.Get(t.Context(), "control").Err()
	if n := proxy.Commands()["GET"]; n < 2 {
		t.Errorf("positive control: go-redis sent an ordinary GET %d times", n)
	}
	lost.Lift()
}

func TestASwallowedAnswerIsNotBusyAndLeaksNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := through(t, server, proxy)
	l := newSingle(t, client)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))

	swallowed := proxy.SwallowReplies(1, scriptCall(locker.OpAcquire, "silent"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, locker.Rule{Key: "silent"})
	wantErr(t, err, "silent", context.DeadlineExceeded, locker.ErrUnavailable)
	wantNot(t, err, locker.ErrBusy)
	if swallowed.Hits() != 1 {
		t.Fatal("positive control: no answer was swallowed")
	}
	eventually(t, "the key is free", func() bool { return client.Exists(t.Context(), "silent").Val() == 0 })
}

func TestAnAcquireThatIsExecutedAfterItsUndoTakesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := through(t, server, proxy)
	direct := server.Client(t)
	l := newSingle(t, client)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))

	held := proxy.HoldRequests(1, scriptCall(locker.OpAcquire, "zombie"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, locker.Rule{Key: "zombie"})
	wantErr(t, err, "zombie", context.DeadlineExceeded)
	eventually(t, "the undo has run", func() bool { return len(direct.Keys(t.Context(), "latchkit:x:*").Val()) == 1 })
	proxy.ResetCommands()
	if held.Hits() != 1 {
		t.Fatal("positive control: the acquire was not held back")
	}
	before := scriptsRun(t, direct)
	held.Lift()
	eventually(t, "the acquire is executed, late", func() bool { return scriptsRun(t, direct) > before })
	if n := direct.Exists(t.Context(), "zombie").Val(); n != 0 {
		t.Fatal("the late acquire took the key")
	}
}

func TestRenewalsSurviveABadConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	l := newSingle(t, through(t, server, proxy))
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: 2 * time.Second})
	lost := proxy.LoseReplies(5, scriptCall(locker.OpRenew, "a"))
	lost.Await(t, 5)
	first := lease.Expires()
	eventually(t, "the lease is renewed again", func() bool { return lease.Expires().After(first) })
	if lease.Context().Err() != nil {
		t.Fatal(context.Cause(lease.Context()))
	}
	release(t, lease)
}

func TestAPartitionIsALossInTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	direct := server.Client(t)
	l := newSingle(t, through(t, server, proxy))
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second})
	hole := proxy.BlackHole()
	lost(t, lease, locker.ErrLost)
	if direct.Exists(t.Context(), "a").Val() == 0 {
		t.Error("the server gave the key away before its holder was told")
	}
	hole.Lift()
}
