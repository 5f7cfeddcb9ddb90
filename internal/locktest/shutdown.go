package locktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// Stopping is a real server that CheckShutdown stops.
type Stopping struct {
	// Send sends a request for key, and reports how it was answered: Served, Refused, or something
	// else.
	Send func(ctx context.Context, key string) string
	// Stop is the graceful shutdown that the server offers.
	Stop func(ctx context.Context) error
	// OneByOne sends newcomers one after the other. A refusal ends a connection of HTTP/2, and a client
	// pauses for seconds before it repeats what the server has not begun.
	OneByOne bool
}

// The expected answers of Stopping.Send.
const (
	Served  = "served"
	Refused = "unavailable, with a time to come back" // 503 with Retry-After, or what the protocol has for it
)

// Post is a Send of HTTP: it posts an empty body to url.
func Post(ctx context.Context, c *http.Client, url string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return err.Error()
	}
	r, err := c.Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Body.Close() }()
	if _, err := io.Copy(io.Discard, r.Body); err != nil { // otherwise the connection is not used again
		return err.Error()
	}
	switch {
	case r.StatusCode == http.StatusOK:
		return Served
	case r.StatusCode == http.StatusServiceUnavailable && r.Header.Get("Retry-After") != "":
		return Refused
	}
	return fmt.Sprintf("%s, Retry-After %q", r.Status, r.Header.Get("Retry-After"))
}

// CheckShutdown stops a server under load: Drain, the server's own shutdown, Close. The server
// still accepts requests during the Drain, so that newcomers meet it. The function start starts the
// server. Its handler, under the lock of the request's key, calls work and fails if work does. Of
// 1 000 requests for 50 keys, those that hold their locks when Drain begins are served, although
// they hold them until all others are answered. Each request that waits then, or that comes during
// the Drain, is refused.
func CheckShutdown(t *testing.T, start func(l locker.Locker, work func(ctx context.Context) error) Stopping) {
	t.Helper()
	const requests, keys = 1000, 50
	var asked beginnings
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(&asked))
	var holders atomic.Int32
	finish := make(chan struct{})
	server := start(l, func(ctx context.Context) error {
		holders.Add(1)
		select {
		case <-finish:
			return ctx.Err()
		case <-ctx.Done(): // as a call to a database would end
			return context.Cause(ctx)
		}
	})
	var early, late tally
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%d calls of Acquire, %d holders, answers %v and %v", asked.n.Load(), holders.Load(), early.String(), late.String())
		}
	})
	for i := range requests / 2 {
		early.send(t, server, fmt.Sprint(i%keys))
	}
	Eventually(t, "half of the requests hold their locks or wait", func() bool {
		return asked.n.Load() == requests/2 && holders.Load() == keys
	})
	drained := make(chan error, 1)
	go func() { drained <- l.Drain(t.Context()) }()
	Eventually(t, "the waiters are refused", func() bool { return early.count(Refused) == requests/2-keys })
	for i := range requests / 2 {
		late.send(t, server, fmt.Sprint(i%(2*keys))) // half of the keys are free
		if server.OneByOne {
			late.all.Wait()
		}
	}
	late.all.Wait()
	close(finish)
	err := <-drained
	early.all.Wait()
	if err := errors.Join(err, server.Stop(t.Context()), l.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if served, refused := early.count(Served), early.count(Refused); served != keys || refused != requests/2-keys {
		t.Errorf("before the Drain: %d of %d holders were served, and %d others were refused", served, keys, refused)
	}
	if refused := late.count(Refused); refused != requests/2 {
		t.Errorf("during the Drain: %d of %d newcomers were refused", refused, requests/2)
	}
}

// CheckARefusedClientReconnects checks that a client with keep-alive, which is refused because the
// process is draining, sends its next request over another connection. So a load balancer can lead
// it to another process. The function start starts a server whose guarded requests are posts to
// url.
func CheckARefusedClientReconnects(t *testing.T, start func(l locker.Locker) (client *http.Client, url string)) {
	t.Helper()
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	client, url := start(l)
	post := func() (answer string, reused bool) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }})
		return Post(ctx, client, url), reused
	}
	post()
	if answer, reused := post(); answer != Served || !reused {
		t.Fatalf("before the Drain: %s, over the same connection: %v", answer, reused)
	}
	holder, err := l.Acquire(t.Context(), locker.Rule{Key: "holder"}) // the Drain lasts as long as it holds its lease
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- l.Drain(t.Context()) }()
	Eventually(t, "the client is refused", func() bool { answer, _ := post(); return answer == Refused })
	// The GOAWAY of HTTP/2 may come after the reply.
	Eventually(t, "the client opens another connection", func() bool {
		answer, reused := post()
		if answer != Refused {
			t.Fatalf("during the Drain: %s", answer)
		}
		return !reused
	})
	if err := errors.Join(holder.Release(t.Context()), <-drained); err != nil {
		t.Error(err)
	}
}

// tally counts the answers to requests that are sent at the same time.
type tally struct {
	all     sync.WaitGroup
	mu      sync.Mutex
	answers map[string]int
}

func (c *tally) send(t *testing.T, server Stopping, key string) {
	c.all.Go(func() {
		answer := server.Send(t.Context(), key)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.answers == nil {
			c.answers = make(map[string]int)
		}
		c.answers[answer]++
	})
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.answers)
}

func (c *tally) count(answer string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers[answer]
}

// beginnings counts the calls of Acquire that have begun.
type beginnings struct{ n atomic.Int32 }

func (b *beginnings) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	if op == locker.OpAcquire {
		b.n.Add(1)
	}
	return ctx, nil
}
