package scriptless_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/scriptless"
	"github.com/latchkit/latchkit/internal/store"
)

// stepHook is a hook that calls the function call before each MULTI, after WATCH and GET have read
// the key.
type stepHook struct{ call func(n int) }

// betweenSteps makes a Store whose client has a stepHook, which calls the function call. The hook
// does not count the acquire of the test.
func betweenSteps(t *testing.T, call func(n int)) (*scriptless.Store, store.Claim, *redis.Client) {
	t.Helper()
	server := redistest.Shared(t)
	client, other := server.Client(t), server.Client(t)
	c := store.Claim{Key: t.Name(), Owner: "HOLDER", TTL: 10 * time.Second, FenceCount: 1}
	s := scriptless.WithoutDeletions(scriptless.New(client))
	if g, err := s.Acquire(t.Context(), c); err != nil || g.State != store.Granted {
		t.Fatalf("%v, %v", g.State, err)
	}
	var n atomic.Int32
	client.AddHook(stepHook{func(int) { call(int(n.Add(1))) }})
	return s, c, other
}

func (stepHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (stepHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (b stepHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "multi" {
			b.call(0)
		}
		return next(ctx, cmds)
	}
}

// steps are the calls that change a lease.
var steps = map[string]func(ctx context.Context, s *scriptless.Store, c store.Claim) (store.Grant, error){
	"renew": func(ctx context.Context, s *scriptless.Store, c store.Claim) (store.Grant, error) {
		c.TTL = time.Hour
		grants, err := s.Renew(ctx, []store.Claim{c})
		if err != nil {
			return store.Grant{}, err
		}
		return grants[0], grants[0].Err
	},
	"release": func(ctx context.Context, s *scriptless.Store, c store.Claim) (store.Grant, error) {
		return s.Release(ctx, c)
	},
	"release and keep": func(ctx context.Context, s *scriptless.Store, c store.Claim) (store.Grant, error) {
		c.KeepFor = time.Hour
		return s.Release(ctx, c)
	},
	"complete": func(ctx context.Context, s *scriptless.Store, c store.Claim) (store.Grant, error) {
		c.Complete, c.OnceFor = true, time.Hour
		return s.Release(ctx, c)
	},
}

// Another client takes the key between GET and EXEC. Without WATCH, the step would change the
// other client's lease.
func TestAStepNeverHitsAHolderThatCameBetween(t *testing.T) {
	t.Parallel()
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var other *redis.Client
			s, c, other := betweenSteps(t, func(n int) {
				if n == 1 {
					must(t, other.Set(t.Context(), t.Name(), "thief", time.Minute).Err())
				}
			})
			g, err := step(t.Context(), s, c)
			if err != nil || g.State != store.NotOurs {
				t.Errorf("the step answered %v, %v, want that the lease is not ours", g.State, err)
			}
			value, left := other.Get(t.Context(), c.Key).Val(), other.PTTL(t.Context(), c.Key).Val()
			if value != "thief" || left > time.Minute || left < time.Second {
				t.Errorf("the other holder has %q for %v", value, left)
			}
			if other.Exists(t.Context(), redisstore.DoneKey(c.Key)).Val() != 0 {
				t.Error("the work is marked as done")
			}
		})
	}
}

// The lease runs out, or is deleted, between GET and EXEC.
func TestAStepDoesNothingWhenTheLeaseEndsBetween(t *testing.T) {
	t.Parallel()
	ends := map[string]func(t *testing.T, c *redis.Client, key string){
		"deleted": func(t *testing.T, c *redis.Client, key string) { must(t, c.Del(t.Context(), key).Err()) },
		"run out": func(t *testing.T, c *redis.Client, key string) {
			must(t, c.PExpire(t.Context(), key, 5*time.Millisecond).Err())
			for c.Exists(t.Context(), key).Val() > 0 { // ends soon, because nothing renews the key
			}
		},
	}
	for name, step := range steps {
		for how, end := range ends {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				var other *redis.Client
				s, c, other := betweenSteps(t, func(n int) {
					if n == 1 {
						end(t, other, t.Name())
					}
				})
				if g, err := step(t.Context(), s, c); err != nil || g.State != store.NotOurs {
					t.Errorf("the step answered %v, %v, want that the lease is not ours", g.State, err)
				}
				if n := other.Exists(t.Context(), c.Key, redisstore.DoneKey(c.Key)).Val(); n != 0 {
					t.Error("it left a key")
				}
			})
		}
	}
}

// Another client writes the key without changing its holder. The step is then repeated, and the
// lease is not lost.
func TestAStepIsRepeatedWhenTheKeyWasWritten(t *testing.T) {
	t.Parallel()
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var other *redis.Client
			attempts := 0
			s, c, other := betweenSteps(t, func(n int) {
				if attempts = n; n <= 3 {
					must(t, other.PExpire(t.Context(), t.Name(), time.Minute).Err())
				}
			})
			g, err := step(t.Context(), s, c)
			if want := map[bool]store.State{true: store.Granted, false: store.Released}[name == "renew"]; err != nil || g.State != want {
				t.Errorf("the step answered %v, %v, want %v", g.State, err, want)
			}
			if attempts != 4 {
				t.Errorf("%d attempts, want 4", attempts)
			}
			left := other.PTTL(t.Context(), c.Key).Val()
			if lasts := name == "renew" || name == "release and keep"; lasts && left < 50*time.Minute || !lasts && left > 0 {
				t.Errorf("the key has %v left", left)
			}
		})
	}
}

// A step ends even if another client writes the key all the time. The step then has had no effect,
// so the Engine repeats the step.
func TestAStepGivesUpWhenTheKeyIsWrittenAllTheTime(t *testing.T) {
	t.Parallel()
	var other *redis.Client
	s, c, other := betweenSteps(t, func(int) { must(t, other.PExpire(t.Context(), t.Name(), time.Minute).Err()) })
	_, err := s.Release(t.Context(), c)
	var no *store.Refusal
	if !errors.As(err, &no) || !no.Temporary {
		t.Errorf("%v, want a refusal that is temporary", err)
	}
}

// EXEC is late in the network. Before EXEC arrives, another client takes the key.
func TestALateExecHitsNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := chaos.NewProxy(t, server.Addr())
	direct := server.Client(t)
	s := scriptless.WithoutDeletions(scriptless.New(server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })))
	for name, step := range steps {
		c := store.Claim{Key: t.Name() + name, Owner: "HOLDER", TTL: 10 * time.Second, FenceCount: 1}
		if g, err := s.Acquire(t.Context(), c); err != nil || g.State != store.Granted {
			t.Fatalf("%v, %v", g.State, err)
		}
		late := proxy.HoldRequests(1, chaos.Command("exec"))
		type answer struct {
			g   store.Grant
			err error
		}
		answered := make(chan answer, 1)
		go func() { g, err := step(t.Context(), s, c); answered <- answer{g, err} }()
		late.Await(t, 1)
		must(t, direct.Del(t.Context(), c.Key).Err())
		thief := store.Claim{Key: c.Key, Owner: "THIEF", TTL: time.Minute, FenceCount: 1}
		if g, err := scriptless.New(direct).Acquire(t.Context(), thief); err != nil || g.State != store.Granted {
			t.Fatalf("%v, %v", g.State, err)
		}
		late.Lift()
		if a := <-answered; a.err != nil || a.g.State != store.NotOurs {
			t.Errorf("%s: %v, %v", name, a.g.State, a.err)
		}
		if g, err := scriptless.New(direct).Release(t.Context(), thief); err != nil || g.State != store.Released {
			t.Errorf("%s: the other holder's release: %v, %v", name, g.State, err)
		}
	}
}

// go-redis sends no transaction twice, whatever its MaxRetries is. A repeated release would find
// no lease, and the lock would count as lost.
func TestNoTransactionIsSentTwice(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := chaos.NewProxy(t, server.Addr())
	s := scriptless.WithoutDeletions(scriptless.New(server.Client(t, func(o *redis.Options) { o.Addr, o.MaxRetries = proxy.Addr(), 3 })))
	for i, name := range []string{"acquire", "renew", "release"} {
		c := store.Claim{Key: fmt.Sprint(t.Name(), i), Owner: "HOLDER", TTL: 10 * time.Second, FenceCount: 1}
		step := steps[name]
		if name == "acquire" {
			step = func(ctx context.Context, s *scriptless.Store, c store.Claim) (store.Grant, error) {
				return s.Acquire(ctx, c)
			}
		} else if _, err := s.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		proxy.ResetCommands()
		lost := proxy.LoseReplies(1, chaos.Command("exec"))
		_, err := step(t.Context(), s, c)
		lost.Await(t, 1)
		var no *store.Refusal
		if err == nil || errors.As(err, &no) {
			t.Errorf("%s without an answer: %v, want an error that leaves it open", name, err)
		}
		if n := proxy.Commands()["EXEC"]; n != 1 {
			t.Errorf("%s: EXEC was sent %d times", name, n)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// A full server refuses the transaction as a whole. So no lease was taken, and the Engine need not
// undo the acquire.
func TestAFullServerRefusesATransaction(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	must(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := scriptless.New(client).Acquire(t.Context(), store.Claim{Key: "full", Owner: "HOLDER", TTL: time.Minute, FenceCount: 1})
	var no *store.Refusal
	if !errors.As(err, &no) || !no.Temporary {
		t.Errorf("%v, want a refusal that is temporary", err)
	}
}

// A value has no colon, whatever the metadata is. So no Locker with scripts takes the value for
// its own lease. Claims of readers are refused.
func TestAValueHasNoColon(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	s, c := scriptless.New(client), store.Claim{Key: t.Name(), Owner: "HOLDER", TTL: time.Minute, FenceCount: 1, Metadata: "host:7:8|9"}
	if g, err := s.Acquire(t.Context(), c); err != nil || g.State != store.Granted {
		t.Fatalf("%v, %v", g.State, err)
	}
	if value := client.Get(t.Context(), c.Key).Val(); value == "" || strings.Contains(value, ":") {
		t.Errorf("the value is %q", value)
	}
	if info, err := s.Inspect(t.Context(), c.Key); err != nil || info.Metadata != c.Metadata {
		t.Errorf("%+v, %v, want the metadata %q", info, err, c.Metadata)
	}
	c.Mode = store.Shared
	if _, err := s.Acquire(t.Context(), c); !errors.Is(err, store.ErrUnsupported) {
		t.Errorf("a reader: %v", err)
	}
}
