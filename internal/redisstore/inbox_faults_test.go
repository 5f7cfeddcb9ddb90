package redisstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

func TestASubscriptionThatWasKilledIsReplaced(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	p := newPost(t, client)
	name := p.open()
	for range 5 {
		if n, err := client.ClientKillByFilter(t.Context(), "type", "pubsub").Result(); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		p.wantReopened()
		if p.open() != name {
			t.Fatal("the inbox has another name")
		}
		p.wantReceives(client, name)
	}
	server.Restart()
	p.wantReopened()
	eventually(t, "it listens again", func() bool { return p.Inbox("any") != "" })
	if n := server.Client(t).Publish(t.Context(), name, "head 1500 TOKEN the key").Val(); n != 1 {
		t.Fatalf("%d listen", n)
	}
	for e := p.next(); e.Kind != store.EventHead; e = p.next() {
		if e.Kind != store.EventReopened { // another event comes first if an attempt to subscribe came before the server was back
			t.Fatalf("told %+v", e)
		}
	}
}

func TestASilentSubscriptionIsReplaced(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := server.Client(t)
	proxy := chaos.NewProxy(t, server.Addr())
	p := newPost(t, through(t, server, proxy))
	name := p.open()
	// The test itself has sent one of the two PINGs.
	eventually(t, "it was asked for a sign of life, and gave it", func() bool { return proxy.Commands()["PING"] == 2 })
	if p.Inbox("") == "" || len(p.events) > 0 {
		t.Fatal("a subscription that is only quiet was replaced")
	}
	start := time.Now()
	silent := proxy.SwallowReplies(1, chaos.Command("PING"))
	p.wantReopened()
	if d := time.Since(start); silent.Hits() != 1 || d > 14*time.Second {
		t.Fatalf("replaced after %v, with %d answers missing", d, silent.Hits())
	}
	p.wantReceives(direct, name)
}

func TestOpenFailsWhereTheUserMayNotSubscribe(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if err := server.Client(t).Do(t.Context(), "acl", "setuser", "narrow", "on", ">secret", "+@all", "~*", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	client := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "narrow", "secret" })
	p := newPost(t, client)
	for range 3 {
		name, err := p.Open(t.Context(), "any")
		if no, ok := errors.AsType[*store.Refusal](err); name != "" || !ok || no.Temporary || !strings.Contains(err.Error(), "ACL") {
			t.Fatalf("%q %v", name, err)
		}
	}
	if p.Inbox("any") != "" || len(subscribers(t, client)) != 0 {
		t.Fatal("it seems to listen")
	}
	eventually(t, "no connection is left of what failed", func() bool {
		return strings.Count(server.Client(t).ClientList(t.Context()).Val(), "user=narrow") == 1
	})
	// A user without rights to any channel can still lock, wait without an inbox, and hand the key
	// to a waiter with an inbox. A user that may not even count subscribers can do the same.
	if err := server.Client(t).Do(t.Context(), "acl", "setuser", "blind", "on", ">secret", "+@all", "-pubsub", "~*", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	blind := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "blind", "secret" })
	for name, c := range map[string]*redis.Client{"narrow": client, "blind": blind} {
		l := &line{t, c, locktest.SingleStore(c), name}
		listener := newLine(t, server).listen()
		holder := l.newHolder()
		first, second := l.newWaiter(listener.name), l.newWaiter("")
		l.release(holder, store.Released)
		l.wantHolder(first)
		listener.wantSilence() // only the message is lost
		l.release(first, store.Released)
		l.wantHolder(second)
	}
}

func TestOpenIsBoundedAndSaysWhy(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var dials atomic.Int32
	p := newPost(t, server.Client(t, func(o *redis.Options) {
		o.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return net.Dial(network, addr)
		}
	}))
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if name, err := p.Open(ctx, "any"); name != "" || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
		t.Fatalf("%q %v after %v", name, err, time.Since(start))
	}
	server.Resume()
	p.open() // now the attempt continues
	server.Kill()
	eventually(t, "it names no inbox where it cannot hear", func() bool { return p.Inbox("any") == "" })
	before := dials.Load()
	// The limit is high, because go-redis dials several times for each attempt to subscribe.
	eventually(t, "it tries again and again", func() bool { return dials.Load() > before+25 })
	if name, err := p.Open(t.Context(), "any"); name != "" || err == nil {
		t.Fatalf("%q %v", name, err)
	}
	q := newPost(t, redis.NewClient(&redis.Options{Addr: server.Addr()}))
	if name, err := q.Open(t.Context(), "any"); name != "" || err == nil {
		t.Fatalf("%q %v", name, err)
	} else if no, ok := errors.AsType[*store.Refusal](err); !ok || !no.Temporary {
		t.Fatalf("%v, want a temporary refusal", err)
	}
	server.Restart()
	q.open()
	p.wantReopened()
}

// A server never ends a plain subscription by itself. But a proxy may end any subscription, and a
// cluster ends sharded subscriptions.
func TestASubscriptionThatWasTakenAwayIsReplaced(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go confirmAndEnd(conn, taken)
		}
	}()
	client := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), Protocol: 2, DisableIdentity: true})
	defer client.Close()
	p := newPost(t, client)
	if _, err := p.Open(t.Context(), "any"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	p.wantReopened()
	p.wantReopened()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("replaced after %v: not before it was silent for long", d)
	}
	p.stop()
	if len(taken) < 2 {
		t.Fatal("positive control: no subscription was taken away")
	}
}

// confirmAndEnd confirms each subscription that conn requests, sends a signal on the channel
// confirmed, and then ends the subscription.
func confirmAndEnd(conn net.Conn, confirmed chan<- struct{}) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		switch word := lines.Text(); {
		case strings.HasPrefix(word, "latchkit:i:"):
			_, _ = fmt.Fprintf(conn, "*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(word), word)
			confirmed <- struct{}{}
			_, _ = fmt.Fprintf(conn, "*3\r\n$11\r\nunsubscribe\r\n$%d\r\n%s\r\n:0\r\n", len(word), word)
		case strings.EqualFold(word, "hello"), strings.EqualFold(word, "client"):
			_, _ = io.WriteString(conn, "-ERR unknown command\r\n")
		}
	}
}

// A silent connection must delay neither Close nor a new subscription.
func TestCloseKeepsToItsContextWhileSubscribing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	hole, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts connections, and no server answers
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	var mute atomic.Bool
	client := server.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if mute.Load() {
				addr = hole.Addr().String()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	l, err := locker.New(client)
	if err != nil {
		t.Fatal(err)
	}
	lease := acquire(t, l, locker.Rule{Key: "a"})
	other := locktest.Single(t, server.Client(t))
	acquire(t, other, locker.Rule{Key: "b"})
	mute.Store(true)
	_, err = l.Acquire(t.Context(), locker.Rule{Key: "b", Wait: 100 * time.Millisecond}) // this wait opens the inbox
	wantErr(t, err, "b", locker.ErrBusy)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("positive control: nothing kept Close: %v", err)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("Close took %v with a context of 100 ms", d)
	}
	wantErr(t, context.Cause(lease.Context()), "a", locker.ErrClosed)
}
