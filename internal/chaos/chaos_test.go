package chaos_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// bundle is the fixture of a test: a proxy to the shared server, a client through the proxy, with
// a short time-out and without retries, a direct client, and a key.
type bundle struct {
	proxy   *chaos.Proxy
	client  *redis.Client
	witness *redis.Client
	key     string
}

// replyTimeout is the time for which the client waits for a reply. It is long enough for a real
// reply under the race detector, and short enough for tests that wait until a call times out.
const replyTimeout = 300 * time.Millisecond

func setup(t *testing.T, mod ...func(*redis.Options)) bundle {
	t.Helper()
	t.Parallel()
	server := redistest.Shared(t)
	proxy := chaos.NewProxy(t, server.Addr())
	return bundle{
		proxy: proxy,
		client: server.Client(t, append([]func(*redis.Options){func(o *redis.Options) {
			o.Addr, o.MaxRetries, o.ReadTimeout = proxy.Addr(), -1, replyTimeout
		}}, mod...)...),
		witness: server.Client(t),
		key:     "chaos:" + rand.Text(),
	}
}

func TestProxyPassesEverythingOn(t *testing.T) {
	for protocol, name := range map[int]string{2: "RESP2", 3: "RESP3"} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, func(o *redis.Options) { o.Protocol, o.ReadTimeout = protocol, 10*time.Second })
			ctx := t.Context()

			long := strings.Repeat("line\r\n$3\r\n", 200_000)
			must(t, b.client.Set(ctx, b.key, long, 0).Err())
			if got := b.client.Get(ctx, b.key).Val(); got != long {
				t.Errorf("%d bytes came back, %d were sent", len(got), len(long))
			}
			must(t, b.client.HSet(ctx, b.key+":hash", "a", "1", "b", "2").Err())
			if got := b.client.HGetAll(ctx, b.key+":hash").Val(); len(got) != 2 {
				t.Errorf("hash %v", got)
			}
			if err := b.client.Get(ctx, b.key+":none").Err(); !errors.Is(err, redis.Nil) {
				t.Errorf("missing key: %v", err)
			}
			var sums []*redis.IntCmd
			_, err := b.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
				for range 100 {
					sums = append(sums, p.Incr(ctx, b.key+":n"))
				}
				return nil
			})
			must(t, err)
			if got := sums[99].Val(); got != 100 {
				t.Errorf("the 100th INCR answered %d", got)
			}
		})
	}
}

func TestLoseReplies(t *testing.T) {
	t.Run("the server has executed what the client knows nothing about", func(t *testing.T) {
		b := setup(t)
		lost := b.proxy.LoseReplies(1, chaos.Containing(b.key))
		if n, err := b.client.Incr(t.Context(), b.key).Result(); err == nil || timedOut(err) {
			t.Errorf("answered %d, %v; want a closed connection", n, err)
		}
		lost.Await(t, 1)
		b.wantValue(t, "1")
	})

	t.Run("strikes as often as it was asked to", func(t *testing.T) {
		b := setup(t)
		lost := b.proxy.LoseReplies(2, chaos.Containing(b.key))
		failed := 0
		for range 5 {
			if b.client.Incr(t.Context(), b.key).Err() != nil {
				failed++
			}
		}
		if failed != 2 || lost.Hits() != 2 {
			t.Errorf("%d of 5 failed, %d hits; want 2", failed, lost.Hits())
		}
		b.wantValue(t, "5")
	})

	t.Run("finds the right reply in a pipeline", func(t *testing.T) {
		b := setup(t)
		b.proxy.LoseReplies(1, chaos.Containing(b.key+":second"))
		p := b.client.Pipeline()
		first, second := p.Incr(t.Context(), b.key+":first"), p.Incr(t.Context(), b.key+":second")
		_, _ = p.Exec(t.Context())
		if first.Val() != 1 || second.Val() != 0 {
			t.Errorf("the first answered %d, the second %d; want 1 and nothing", first.Val(), second.Val())
		}
	})

	t.Run("finds a script by its key", func(t *testing.T) {
		b := setup(t)
		script := redis.NewScript("return redis.call('INCR', KEYS[1])")
		must(t, script.Load(t.Context(), b.witness).Err())
		lost := b.proxy.LoseReplies(1, func(request []byte) bool {
			return chaos.Command("EVALSHA")(request) && chaos.Containing(b.key)(request)
		})
		if err := script.EvalSha(t.Context(), b.client, []string{b.key}).Err(); err == nil {
			t.Error("the script answered")
		}
		lost.Await(t, 1)
		b.wantValue(t, "1")
	})

	t.Run("strikes no more once it is lifted", func(t *testing.T) {
		b := setup(t)
		lost := b.proxy.LoseReplies(chaos.Every, chaos.Containing(b.key))
		if err := b.client.Incr(t.Context(), b.key).Err(); err == nil {
			t.Error("the first answered")
		}
		lost.Lift()
		lost.Lift() // Lift may be called twice
		must(t, b.client.Incr(t.Context(), b.key).Err())
		if lost.Hits() != 1 {
			t.Errorf("%d hits, want 1", lost.Hits())
		}
	})
}

func TestSwallowReplies(t *testing.T) {
	t.Run("the client waits until its time-out for what the server has executed", func(t *testing.T) {
		b := setup(t)
		swallowed := b.proxy.SwallowReplies(1, chaos.Containing(b.key))
		start := time.Now()
		err := b.client.Incr(t.Context(), b.key).Err()
		if !timedOut(err) || time.Since(start) < replyTimeout {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		swallowed.Await(t, 1)
		b.wantValue(t, "1")
	})

	t.Run("no later reply takes the place of the missing one", func(t *testing.T) {
		b := setup(t)
		b.proxy.SwallowReplies(1, chaos.Containing(b.key+":first"))
		p := b.client.Pipeline()
		first, second := p.Incr(t.Context(), b.key+":first"), p.Get(t.Context(), "chaos:none")
		_, _ = p.Exec(t.Context())
		if !timedOut(first.Err()) || !timedOut(second.Err()) {
			t.Errorf("answers %v and %v", first, second)
		}
	})

	t.Run("other connections are not concerned", func(t *testing.T) {
		b := setup(t)
		b.proxy.SwallowReplies(1, chaos.Containing(b.key))
		if err := b.client.Incr(t.Context(), b.key).Err(); err == nil {
			t.Error("the first answered")
		}
		must(t, b.client.Incr(t.Context(), b.key).Err())
	})
}

func TestHoldRequests(t *testing.T) {
	t.Run("nothing is executed before it is lifted, then everything", func(t *testing.T) {
		b := setup(t, func(o *redis.Options) { o.ReadTimeout = 10 * time.Second })
		held := b.proxy.HoldRequests(chaos.Every, chaos.Containing(b.key))
		answer := make(chan error, 1)
		go func() { answer <- b.client.Incr(t.Context(), b.key).Err() }()
		held.Await(t, 1)
		b.wantValue(t, "")
		held.Lift()
		must(t, <-answer)
		b.wantValue(t, "1")
	})

	t.Run("a request outlives the client that has hung up", func(t *testing.T) {
		b := setup(t)
		held := b.proxy.HoldRequests(1, chaos.Containing(b.key))
		if err := b.client.Incr(t.Context(), b.key).Err(); !timedOut(err) {
			t.Errorf("answered %v", err)
		}
		must(t, b.client.Close())
		b.wantValue(t, "")
		held.Lift()
		b.awaitValue(t, "1")
	})

	t.Run("a cut connection drops it", func(t *testing.T) {
		b := setup(t, func(o *redis.Options) { o.ReadTimeout = 10 * time.Second })
		held := b.proxy.HoldRequests(1, chaos.Containing(b.key))
		answer := make(chan error, 1)
		go func() { answer <- b.client.Incr(t.Context(), b.key).Err() }()
		held.Await(t, 1)
		b.proxy.Cut()
		if err := <-answer; err == nil {
			t.Error("answered")
		}
		held.Lift()
		must(t, b.client.Incr(t.Context(), b.key).Err())
		b.wantValue(t, "1")
	})
}

func TestBlackHole(t *testing.T) {
	t.Run("connections neither answer nor break", func(t *testing.T) {
		b := setup(t)
		hole := b.proxy.BlackHole()
		if err := b.client.Incr(t.Context(), b.key).Err(); !timedOut(err) {
			t.Errorf("on an open connection: %v", err)
		}
		if err := b.client.Incr(t.Context(), b.key).Err(); !timedOut(err) {
			t.Errorf("on a new connection: %v", err)
		}
		hole.Await(t, 2)
		b.wantValue(t, "")
	})

	t.Run("keeps connections from the server", func(t *testing.T) {
		b := setup(t)
		hole := b.proxy.BlackHole()
		dial(t, b.proxy)
		hole.Await(t, 1)
	})

	t.Run("keeps what the server sends as well", func(t *testing.T) {
		b := setup(t)
		conn := dial(t, b.proxy)
		if got := conn.ask("SUBSCRIBE " + b.key); !strings.Contains(got, "subscribe") {
			t.Fatalf("answered %q", got)
		}
		hole := b.proxy.BlackHole()
		must(t, b.witness.Publish(t.Context(), b.key, "late").Err())
		hole.Await(t, 1)
		if got, err := conn.receive(replyTimeout); !timedOut(err) {
			t.Errorf("received %q, %v", got, err)
		}
		hole.Lift()
		if got, err := conn.receive(10 * time.Second); err != nil || !strings.Contains(got, "late") {
			t.Errorf("after the partition: %q, %v", got, err)
		}
	})

	t.Run("when it is lifted, what was under way arrives", func(t *testing.T) {
		b := setup(t)
		hole := b.proxy.BlackHole()
		if err := b.client.Incr(t.Context(), b.key).Err(); !timedOut(err) {
			t.Errorf("answered %v", err)
		}
		hole.Lift()
		b.awaitValue(t, "1")
		must(t, b.client.Incr(t.Context(), b.key).Err())
		b.wantValue(t, "2")
	})
}

func TestCut(t *testing.T) {
	b := setup(t)
	conn := dial(t, b.proxy)
	if got := conn.ask("PING"); got != "+PONG\r\n" {
		t.Fatalf("answered %q", got)
	}
	if n := b.proxy.Cut(); n != 2 { // the connection of the test, and the connection of the client
		t.Errorf("cut %d connections, want 2", n)
	}
	if got, err := conn.receive(10 * time.Second); err == nil || timedOut(err) {
		t.Errorf("the connection is still there: %q, %v", got, err)
	}
	await(t, func() bool { return b.proxy.Cut() == 0 }) // until no connection is left
	await(t, func() bool { return b.client.Ping(t.Context()).Err() == nil })
}

func TestServerThatIsDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	client := server.Client(t, func(o *redis.Options) { o.Addr, o.MaxRetries = proxy.Addr(), -1 })
	server.Kill()
	if err := client.Ping(t.Context()).Err(); err == nil || timedOut(err) {
		t.Errorf("with the server down: %v", err)
	}
	server.Restart()
	await(t, func() bool { return client.Ping(t.Context()).Err() == nil })
}

func TestCommands(t *testing.T) {
	b := setup(t)
	ctx := t.Context()
	b.proxy.ResetCommands()
	script := redis.NewScript("redis.call('SET', KEYS[1], '1'); return redis.call('GET', KEYS[1])")
	for range 3 {
		must(t, script.Eval(ctx, b.client, []string{b.key}).Err())
	}
	must(t, b.client.Get(ctx, b.key).Err())
	if got := b.proxy.Commands(); got["EVAL"] != 3 || got["GET"] != 1 || got["SET"] != 0 {
		t.Errorf("commands %v, want 3 EVAL and 1 GET and none that the script made", got)
	}
	b.proxy.ResetCommands()
	if got := b.proxy.Commands(); len(got) != 0 {
		t.Errorf("after the reset: %v", got)
	}
}

func TestSubscriptions(t *testing.T) {
	for protocol, name := range map[int]string{2: "RESP2", 3: "RESP3"} {
		resp := func(o *redis.Options) { o.Protocol = protocol }

		t.Run(name+": messages answer no request", func(t *testing.T) {
			b := setup(t, resp)
			ctx := t.Context()
			sub := b.client.Subscribe(ctx, b.key, b.key+":other")
			defer sub.Close()
			receive[*redis.Subscription](t, sub)
			receive[*redis.Subscription](t, sub)
			must(t, b.witness.Publish(ctx, b.key, "one").Err())
			must(t, b.witness.Publish(ctx, b.key, "two").Err())
			receive[*redis.Message](t, sub)
			receive[*redis.Message](t, sub)

			// The proxy must not take a message or a confirmation for a reply. Otherwise the fault
			// of this test would hit a later reply.
			lost := b.proxy.LoseReplies(1, chaos.Command("PING"))
			must(t, sub.Ping(ctx, "still there?"))
			lost.Await(t, 1)
		})

		t.Run(name+": a confirmation can be lost", func(t *testing.T) {
			b := setup(t, resp)
			ctx := t.Context()
			lost := b.proxy.SwallowReplies(1, chaos.Command("SUBSCRIBE"))
			sub := b.client.Subscribe(ctx, b.key)
			defer sub.Close()
			// The client connects again if its greeting gets no reply within replyTimeout.
			for end := time.Now().Add(10 * time.Second); lost.Hits() == 0 && time.Now().Before(end); {
				if m, err := sub.ReceiveTimeout(ctx, replyTimeout); err == nil {
					t.Errorf("received %v", m)
				}
			}
			lost.Await(t, 1)
			if m, err := sub.ReceiveTimeout(ctx, replyTimeout); err == nil {
				t.Errorf("received %v", m)
			}
			if n := b.witness.PubSubNumSub(ctx, b.key).Val()[b.key]; n != 1 {
				t.Errorf("%d subscribers, want 1: the server has executed it", n)
			}
		})
	}
}

func receive[T any](t *testing.T, sub *redis.PubSub) T {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	got, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
	for err != nil && time.Now().Before(end) { // the client connects again if its greeting gets no reply within replyTimeout
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the pause between two checks
		got, err = sub.ReceiveTimeout(t.Context(), time.Until(end))
	}
	must(t, err)
	m, ok := got.(T)
	if !ok {
		t.Fatalf("received %T %v", got, got)
	}
	return m
}

// wire is a bare connection without retries.
type wire struct {
	t *testing.T
	net.Conn
}

func dial(t *testing.T, proxy *chaos.Proxy) wire {
	t.Helper()
	conn, err := net.Dial("tcp", proxy.Addr())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return wire{t, conn}
}

func (w wire) ask(command string) string {
	w.t.Helper()
	_, err := w.Write([]byte(command + "\r\n"))
	must(w.t, err)
	answer, err := w.receive(10 * time.Second)
	must(w.t, err)
	return answer
}

func (w wire) receive(timeout time.Duration) (string, error) {
	w.t.Helper()
	must(w.t, w.SetReadDeadline(time.Now().Add(timeout)))
	answer := make([]byte, 1024) // there is room for every reply in these tests
	n, err := w.Read(answer)
	return string(answer[:n]), err
}

func (b bundle) value(t *testing.T) string {
	t.Helper()
	v, err := b.witness.Get(t.Context(), b.key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

func (b bundle) wantValue(t *testing.T, want string) {
	t.Helper()
	if got := b.value(t); got != want {
		t.Errorf("the server has %q, want %q", got, want)
	}
}

func (b bundle) awaitValue(t *testing.T, want string) {
	t.Helper()
	await(t, func() bool { return b.value(t) == want })
}

// await waits until the condition holds. The condition is polled, because no event shows the
// change.
func await(t *testing.T, condition func() bool) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	deadline := time.After(10 * time.Second)
	for !condition() {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatal("it did not come to pass within 10 s")
		}
	}
}

func timedOut(err error) bool {
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
