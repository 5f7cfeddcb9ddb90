package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
)

// countScript increments the counter at a key and returns the key, so that a test notices a second
// execution.
var countScript = scriptOf("redis.call('INCR', KEYS[1]) return KEYS[1]")

// countCall returns a call that increments the counter at a key.
func countCall(key string) *Call {
	return &Call{Script: countScript, Words: countScript.Words([]string{key}), Key: key, Class: Ask, Receiver: make(signal, 1)}
}

// newLinks returns Links with the client c and the options o. The Links are closed when the test
// ends.
func newLinks(t *testing.T, c Client, o Options) *Links {
	t.Helper()
	ls := New(c, o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := ls.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return ls
}

// boundCalls changes the options so that a client ends each call when the context of the call ends.
func boundCalls(o *redis.Options) { o.ContextTimeoutEnabled = true }

// spy is a hook. The hook records the commands that a client sends, and for each command the
// goroutine that sends the command.
type spy struct {
	mu     sync.Mutex
	single int
	piped  []int
	stacks []string
	prefix string
	names  map[string]int
}

func (s *spy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.record(cmd)
		s.mu.Lock()
		s.single++
		s.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (s *spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.record(cmds...)
		s.mu.Lock()
		s.piped = append(s.piped, len(cmds))
		s.mu.Unlock()
		return next(ctx, cmds)
	}
}

// record records commands. If the spy has a prefix, note puts it before the first key of each
// script.
func (s *spy) record(cmds ...redis.Cmder) {
	stack := make([]byte, 16<<10)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stacks = append(s.stacks, string(stack[:runtime.Stack(stack, false)]))
	if s.names == nil {
		s.names = map[string]int{}
	}
	for _, cmd := range cmds {
		s.names[cmd.Name()]++
		if args := cmd.Args(); s.prefix != "" && len(args) > 3 {
			args[3] = s.prefix + args[3].(string)
		}
	}
}

// sendTogether makes n calls at the same time, call i for the key key(i), and returns the errors of
// the calls that failed.
func sendTogether(t *testing.T, ls *Links, n int, key func(i int) string) (failed []error) {
	t.Helper()
	var calls []*Call
	for i := range n {
		c := countCall(key(i))
		ls.Send(t.Context(), c)
		calls = append(calls, c)
	}
	for i, c := range calls {
		<-done(c)
		if text, err := c.Answer(); err != nil {
			failed = append(failed, err)
		} else if !strings.HasSuffix(text, key(i)) {
			t.Errorf("the answer to %s is %s", key(i), text)
		}
	}
	return failed
}

func TestALoneCallRunsOnItsCallersGoroutineWhereTheClientEndsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mod   func(*redis.Options)
		alone bool
	}{
		"as go-redis comes":    {func(*redis.Options) {}, true},
		"without time-outs":    {func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 }, false},
		"without a time-out":   {func(o *redis.Options) { o.WriteTimeout = -1 }, false},
		"without any deadline": {func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -2, -2 }, false},
		"with deadlines":       {boundCalls, true},
		"with deadlines and no time-outs": {func(o *redis.Options) {
			boundCalls(o)
			o.ReadTimeout, o.WriteTimeout = -1, -1
		}, true},
		"with deadlines that the client leaves out": {func(o *redis.Options) {
			boundCalls(o)
			o.ReadTimeout, o.WriteTimeout = -2, -2
		}, false},
		"RESP2": {func(o *redis.Options) { boundCalls(o); o.Protocol = 2 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := redistest.Start(t).Client(t, c.mod)
			s := &spy{}
			client.AddHook(s)
			ls := newLinks(t, client, Options{})
			made := func() bool {
				c := countCall("k")
				ls.Send(t.Context(), c)
				<-done(c)
				if _, err := c.Answer(); err != nil {
					t.Fatal(err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				return slices.ContainsFunc(s.stacks, func(stack string) bool { return strings.Contains(stack, t.Name()[:10]) })
			}
			// On a busy machine an answer may take 20 ms, and then the next call gets a batch.
			if c.alone {
				await(t, "a call is made on its caller's goroutine", made)
				return
			}
			for range 20 {
				if made() {
					t.Fatal("a call was made on its caller's goroutine")
				}
			}
		})
	}
}

// While the server is stopped, a caller that leaves returns at once, or within 250 ms if it makes
// its call on its own goroutine.
func TestWhoeverLeavesIsBackInTimeWhateverHangs(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{0, -1, -2, 100 * time.Millisecond} {
		for _, deadlines := range []bool{false, true} {
			for _, protocol := range []int{2, 3} {
				for _, state := range []string{"a connection is there", "a new connection", "a pool of one in use"} {
					t.Run(fmt.Sprint(timeout, " deadlines=", deadlines, " RESP", protocol, " ", state), func(t *testing.T) {
						t.Parallel()
						hangs(t, timeout, deadlines, protocol, state)
					})
				}
			}
		}
	}
}

func hangs(t *testing.T, timeout time.Duration, deadlines bool, protocol int, state string) {
	t.Helper()
	server := redistest.Start(t)
	options := &redis.Options{
		Addr: server.Addr(), ContextTimeoutEnabled: deadlines, Protocol: protocol,
		ReadTimeout: timeout, WriteTimeout: timeout,
	}
	if state == "a pool of one in use" {
		options.PoolSize = 1
	}
	client := redis.NewClient(options)
	ls := New(client, Options{})
	for range 3 {
		if _, err := ls.Do(t.Context(), countCall("k")); err != nil {
			t.Fatal(err)
		}
	}
	server.Pause()
	var others sync.WaitGroup
	if state != "a connection is there" { // in the other states, another caller uses the connection
		for range 3 {
			others.Go(func() { client.Ping(context.Background()) })
		}
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		_, err := ls.Do(ctx, countCall("k"))
		if took := time.Since(began); took > 50*time.Millisecond+250*time.Millisecond+busy {
			t.Errorf("the caller is back after %v", took)
		}
		cancel()
		if err == nil {
			t.Error("a server that stands still has answered")
		}
	}
	server.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := ls.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	others.Wait()
	_ = client.Close()
}

// busy is how much later than planned a goroutine may run on a machine that runs other tests. It is
// shorter than the time-outs of the connections in these tests.
const busy = 2 * time.Second

// When a server stalls, each call on its caller's goroutine that reaches its time-out closes its connection. After
// that, the next call opens a new connection. So there may be only few such calls.
func TestAServerThatStallsGetsNoStormOfConnections(t *testing.T) {
	t.Parallel()
	for _, pool := range []int{20, 300} {
		t.Run(fmt.Sprint("a pool of ", pool), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			var dials atomic.Int32
			client := server.Client(t, boundCalls, func(o *redis.Options) { o.PoolSize = pool })
			client.AddHook(dialled{&dials})
			ls := newLinks(t, client, Options{})
			var work sync.WaitGroup
			stop := make(chan struct{})
			var answers atomic.Int32
			for g := range 64 {
				work.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
						if _, err := ls.Do(ctx, countCall(fmt.Sprint("k", g))); err == nil {
							answers.Add(1)
						}
						cancel()
					}
				})
			}
			await(t, "the callers are at work", func() bool { return answers.Load() > 5000 })
			before := dials.Load()
			server.Pause()
			time.Sleep(time.Second) //nolint:forbidigo // the time for which the server is stopped
			server.Resume()
			at := answers.Load()
			await(t, "all callers are answered again", func() bool { return answers.Load() > at+1000 })
			close(stop)
			work.Wait()
			if n := dials.Load() - before; n > 20 {
				t.Errorf("%d new connections", n)
			}
		})
	}
}

// dialled is a hook that counts new connections.
type dialled struct{ n *atomic.Int32 }

func (d dialled) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.n.Add(1)
		return next(ctx, network, addr)
	}
}
func (d dialled) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (d dialled) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func await(t *testing.T, event string, reached func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !reached(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", event)
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // a poll
	}
}

// Scripts that the server does not know are sent with their texts, and no call is executed twice.
func TestUnknownScriptsOfAFlightRunOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	s := &spy{}
	client.AddHook(s)
	ls := newLinks(t, client, Options{})
	admin := server.Client(t)
	const rounds, each = 20, 30
	for range rounds {
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if failed := sendTogether(t, ls, each, func(i int) string { return fmt.Sprint("k", i) }); failed != nil {
			t.Fatal(failed)
		}
	}
	for i := range each {
		if n, _ := admin.Get(t.Context(), fmt.Sprint("k", i)).Int(); n != rounds {
			t.Errorf("k%d was counted %d times, not %d", i, n, rounds)
		}
	}
	if len(s.piped) == 0 {
		t.Error("no batch had several calls")
	}
}

// When a connection breaks during a batch, it is unclear whether the server has executed the
// batch's calls. Such calls are not sent again.
func TestACallIsSentOnceWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	ls := newLinks(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), Options{})
	if failed := sendTogether(t, ls, 5, func(int) string { return "warm" }); failed != nil {
		t.Fatal(failed)
	}
	lost := proxy.LoseReplies(5, chaos.Containing("k:"))
	failed := sendTogether(t, ls, 50, func(i int) string { return fmt.Sprint("k:", i) })
	if lost.Hits() == 0 || len(failed) == 0 {
		t.Fatalf("%d replies were lost, %d calls failed", lost.Hits(), len(failed))
	}
	lost.Lift()
	admin := server.Client(t)
	for i := range 50 {
		if n, _ := admin.Get(t.Context(), fmt.Sprint("k:", i)).Int(); n > 1 {
			t.Errorf("k:%d was counted %d times", i, n)
		}
	}
}

// The hooks of the client see every call, alone or in a pipeline.
func TestAllCallsGoByTheHooksOfTheirClient(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, mod := range map[string]func(*redis.Options){"alone": boundCalls, "by batch": func(*redis.Options) {}} {
		t.Run(name, func(t *testing.T) {
			client := server.Client(t, mod)
			client.AddHook(&spy{prefix: "mine:"})
			ls := newLinks(t, client, Options{})
			admin := server.Client(t)
			admin.FlushDB(t.Context())
			for i := range 10 {
				if _, err := ls.Do(t.Context(), countCall(fmt.Sprint("alone", i))); err != nil {
					t.Fatal(err)
				}
			}
			if failed := sendTogether(t, ls, 50, func(i int) string { return fmt.Sprint("k", i) }); failed != nil {
				t.Fatal(failed)
			}
			keys, err := admin.Keys(t.Context(), "*").Result()
			if err != nil || len(keys) != 60 {
				t.Errorf("%d keys, %v", len(keys), err)
			}
			for _, key := range keys {
				if strings.Count(key, "mine:") != 1 || !strings.HasPrefix(key, "mine:") {
					t.Errorf("%s has not gone by the hook once", key)
				}
			}
		})
	}
}

// A script that the server does not know is sent again. A hook has put a prefix before the keys of
// the first attempt. The second attempt must not have this prefix when the hook sees it, because
// the call would then go to another key.
func TestAScriptThatTheServerForgotKeepsItsKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, mod := range map[string]func(*redis.Options){"alone": boundCalls, "by batch": func(*redis.Options) {}} {
		client := server.Client(t, mod)
		client.AddHook(&spy{prefix: "mine:"})
		ls := newLinks(t, client, Options{})
		admin := server.Client(t)
		for i := range 3 {
			if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := ls.Do(t.Context(), countCall(name)); err != nil {
				t.Fatal(err)
			}
			if n, _ := admin.Get(t.Context(), "mine:"+name).Int(); n != i+1 {
				t.Errorf("%s: after %d calls the key is %d", name, i+1, n)
			}
		}
	}
}

// metered is a client with its own Process. It inherits Pipeline and Options from its embedded
// client.
type metered struct {
	*redis.Client
	n atomic.Int32
}

func (m *metered) Process(ctx context.Context, cmd redis.Cmder) error {
	m.n.Add(1)
	return m.Client.Process(ctx, cmd)
}

func TestAClientsOwnProcessIsNeverBypassed(t *testing.T) {
	t.Parallel()
	m := &metered{Client: redistest.Start(t).Client(t, boundCalls)}
	ls := newLinks(t, m, Options{})
	if _, err := ls.Do(t.Context(), countCall("k")); err != nil {
		t.Fatal(err)
	}
	m.n.Store(0)
	if failed := sendTogether(t, ls, 50, func(i int) string { return fmt.Sprint("k", i) }); failed != nil {
		t.Fatal(failed)
	}
	if n := m.n.Load(); n != 50 {
		t.Errorf("Process was called %d times for 50 calls", n)
	}
}

// A dead connection delays the calls that use it. All other calls are delayed only for a moment.
func TestCallsGoRoundABlackHole(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	ls := newLinks(t, server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() }), Options{})
	if failed := sendTogether(t, ls, 5, func(int) string { return "warm" }); failed != nil {
		t.Fatal(failed)
	}
	swallowed := proxy.SwallowReplies(1, chaos.Containing("hole"))
	hole := countCall("hole")
	ls.Put(t.Context(), hole)
	swallowed.Await(t, 1)
	began := time.Now()
	if _, err := ls.Do(t.Context(), countCall("well")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > promptWithin+busy {
		t.Errorf("a call waited for %v behind a dead connection", took)
	}
	<-done(hole)
	if _, err := hole.Answer(); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("the call in the black hole ended with %v", err)
	}
	proxy.Cut() // closing the connection ends the goroutine of the hung call
}

// A call that was never sent is distinguished from an unclear call.
func TestADeadServerProvesThatNothingWasSent(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t, func(o *redis.Options) { o.DialerRetries = 1 })
	ls := newLinks(t, client, Options{})
	server.Kill()
	_, err := ls.Do(t.Context(), countCall("k"))
	if err == nil || errors.Is(err, ErrNoAnswer) {
		t.Errorf("the call ended with %v", err)
	}
}

// One WAIT is enough for all writes of its batch.
func TestOneWaitIsSentForEachFlight(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	client := server.Client(t)
	ls := newLinks(t, client, Options{Replicas: 1, Within: 10 * time.Millisecond})
	if _, err := ls.Do(t.Context(), countCall("known")); err != nil {
		t.Fatal(err)
	}
	s := &spy{}
	client.AddHook(s)
	calls := make([]*Call, 40)
	for i := range calls {
		calls[i] = countCall(fmt.Sprint("k", i))
		calls[i].Acked = true
		ls.Send(t.Context(), calls[i])
	}
	for _, c := range calls {
		<-done(c)
		if _, err := c.Answer(); err != nil {
			t.Error(err)
		}
		if n, err := c.Acks(); n != 0 || err != nil { // the server has no replica
			t.Errorf("%d replicas have acknowledged, %v", n, err)
		}
	}
	if n := s.names["evalsha"]; n != 40 {
		t.Errorf("%d scripts were sent for 40 calls", n)
	}
	if n := s.names["wait"]; n < 1 || n > 30 {
		t.Errorf("%d WAITs were sent for 40 calls", n)
	}
	follower := redistest.Start(t, "--replicaof", "127.0.0.1 "+fmt.Sprint(server.Port()))
	await(t, "a replica follows", func() bool {
		return strings.Contains(follower.Client(t).Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	await(t, "the replica acknowledges", func() bool {
		c := countCall("acked")
		c.Acked = true
		ls.Send(t.Context(), c)
		<-done(c)
		n, err := c.Acks()
		return n == 1 && err == nil
	})
}
