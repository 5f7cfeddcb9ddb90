package attack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// fronts returns servers of all adapters. Each server has one route, POST /orders/{id}, whose
// handler runs under the lock of this order.
func fronts(l locker.Locker, h http.HandlerFunc, opts ...httplock.Option) map[string]http.Handler {
	gin.SetMode(gin.ReleaseMode)
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", httplock.MustNew(l, "order:{param.id}", opts...)(h))
	e := gin.New()
	e.POST("/orders/:id", ginlock.MustNew(l, "order:{param.id}", opts...), func(c *gin.Context) { h(c.Writer, c.Request) })
	return map[string]http.Handler{"net/http": mux, "Gin": e}
}

// dial sends the text of a request, and leaves the connection open.
func dial(t *testing.T, server *httptest.Server, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// hundred sends 100 requests for the same order at once. All requests must succeed.
func hundred(t *testing.T, server *httptest.Server) {
	t.Helper()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			res, err := server.Client().Post(server.URL+"/orders/1", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = res.Body.Close() }()
			if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
				t.Errorf("%d %.200s", res.StatusCode, body)
			}
		})
	}
	wg.Wait()
}

// A client may send half of its body and then nothing. The request of this client must not hold the
// lock of its order for ever. If this request held the lock, all other clients of the order
// would wait for it, in all processes.
func TestAHalfBodyHoldsNobodysLock(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	h := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "paid")
	}
	// The guard must read the body before it takes the lock. The stall timeout would also free
	// a lock that is held too early, so the test makes it too long to matter.
	for name, front := range fronts(l, h, httplock.WithWait(20*time.Second), httplock.WithStallTimeout(time.Hour)) {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(front)
			t.Cleanup(server.Close) // comes after the clean-up of dial, which closes its connection
			dial(t, server, "POST /orders/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
			hundred(t, server)
		})
	}
}

// A streamed body is read under the lock. If the client sends nothing for the stall timeout,
// the guard ends the request and releases the lock.
func TestAStalledUploadLosesItsHold(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	ends := make(chan error, 200)
	entered := make(chan struct{}, 200)
	h := func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			ends <- errors.Join(err, context.Cause(r.Context()))
			return // the handler writes no reply, so the guard replies
		}
		_, _ = io.WriteString(w, "paid")
	}
	for name, front := range fronts(l, h, httplock.WithWait(time.Minute), httplock.WithStreamedBody(), httplock.WithStallTimeout(200*time.Millisecond)) {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(front)
			t.Cleanup(server.Close) // comes after the clean-up of dial, which closes its connection
			conn := dial(t, server, "POST /orders/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
			<-entered
			hundred(t, server)
			if err := <-ends; !errors.Is(err, httplock.ErrStalled) {
				t.Errorf("the upload ended with %v", err)
			}
			reply := make([]byte, 1000)
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			n, err := io.ReadAtLeast(conn, reply, 12)
			if err != nil || !strings.HasPrefix(string(reply[:n]), "HTTP/1.1 408") {
				t.Errorf("%q, %v; want 408", reply[:n], err)
			}
			for len(entered) > 0 {
				<-entered
			}
		})
	}
}

// A client that does not read its response blocks the handler's Write. The handler must not hold
// the lock until this Write ends.
func TestAClientThatDoesNotReadLosesItsHold(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	ends := make(chan error, 1)
	entered := make(chan struct{}, 1)
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Large") == "" {
			_, _ = io.WriteString(w, "paid")
			return
		}
		entered <- struct{}{}
		var err error
		for i := 0; err == nil && i < 1000; i++ {
			_, err = w.Write(make([]byte, 1<<20))
		}
		ends <- errors.Join(err, context.Cause(r.Context()))
	}
	for name, front := range fronts(l, h, httplock.WithWait(time.Minute), httplock.WithStallTimeout(200*time.Millisecond)) {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(front)
			t.Cleanup(server.Close) // comes after the clean-up of dial, which closes its connection
			dial(t, server, "POST /orders/1 HTTP/1.1\r\nHost: x\r\nX-Large: 1\r\nContent-Length: 0\r\n\r\n")
			<-entered
			hundred(t, server)
			if err := <-ends; !errors.Is(err, httplock.ErrStalled) {
				t.Errorf("the response ended with %v", err)
			}
		})
	}
}

// If a slow client sends data again and again, its request succeeds, however long the upload
// takes.
func TestASlowUploadThatMakesProgressIsServed(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintln(w, n, err)
	}
	for name, front := range fronts(l, h, httplock.WithStreamedBody(), httplock.WithStallTimeout(2*time.Second)) {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(front)
			t.Cleanup(server.Close) // comes after the clean-up of dial, which closes its connection
			body, feed := io.Pipe()
			go func() {
				for range 30 { // the pauses together take 3 s, longer than the stall timeout
					_, _ = io.WriteString(feed, "x")
					<-time.After(100 * time.Millisecond)
				}
				_ = feed.Close()
			}()
			res, err := server.Client().Post(server.URL+"/orders/1", "", body)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if text, _ := io.ReadAll(res.Body); string(text) != "30 <nil>\n" {
				t.Errorf("%d %s", res.StatusCode, text)
			}
		})
	}
}

// When clients disconnect at random moments, no lock stays held.
func TestClientsThatLeaveAtRandomLeaveNoLock(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	h := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "paid")
	}
	for name, front := range fronts(l, h, httplock.WithWait(time.Minute)) {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(front)
			var wg sync.WaitGroup
			for i := range 500 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%50)*200*time.Microsecond)
					defer cancel()
					r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/orders/1", strings.NewReader("{}"))
					if err != nil {
						t.Error(err)
						return
					}
					if res, err := server.Client().Do(r); err == nil {
						_ = res.Body.Close()
					}
				})
			}
			wg.Wait()
			hundred(t, server)
			server.Close()
			if n := store.Len(); n != 0 {
				t.Errorf("%d locks are left", n)
			}
		})
	}
}
