package attack_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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

// fronts returns handlers for net/http and Gin. Each handler has one route, /orders/{id}, which runs
// h under the lock of this order.
func fronts(l locker.Locker, h http.HandlerFunc, opts ...httplock.Option) map[string]http.Handler {
	gin.SetMode(gin.ReleaseMode)
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", httplock.MustNew(l, "order:{param.id}", opts...)(h))
	e := gin.New()
	e.Any("/orders/:id", ginlock.MustNew(l, "order:{param.id}", opts...), func(c *gin.Context) { h(c.Writer, c.Request) })
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
	for name, front := range fronts(l, h, httplock.WithWait(20*time.Second)) {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(front)
			t.Cleanup(server.Close) // comes after the clean-up of dial, which closes its connection
			dial(t, server, "POST /orders/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
			hundred(t, server)
		})
	}
}

// A client may send nothing more of a body that is read under the lock, or read nothing of its
// response. The time-outs of its server bound for how long it holds the lock.
func TestTheTimeoutsOfTheServerBoundASlowClient(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	entered, ended := make(chan struct{}, 1), make(chan error, 1)
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Slow") == "" {
			_, _ = io.WriteString(w, "paid")
			return
		}
		entered <- struct{}{}
		_, err := io.Copy(io.Discard, r.Body)
		for i := 0; err == nil && i < 1000; i++ {
			_, err = w.Write(make([]byte, 1<<20))
		}
		ended <- err
	}
	for name, front := range fronts(l, h, httplock.WithWait(time.Minute), httplock.WithStreamedBody()) {
		for slow, length := range map[string]string{"upload": "100", "response": "1"} {
			t.Run(name+" "+slow, func(t *testing.T) {
				others := httptest.NewServer(front)
				defer others.Close()
				server := httptest.NewUnstartedServer(front)
				server.Config.ReadTimeout, server.Config.WriteTimeout = time.Second, time.Second
				server.Start()
				t.Cleanup(server.Close) // comes after the clean-up of dial, which closes its connection
				dial(t, server, "POST /orders/1 HTTP/1.1\r\nHost: x\r\nX-Slow: 1\r\nContent-Length: "+length+"\r\n\r\n{")
				<-entered
				hundred(t, others)
				if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the handler ended with %v", err)
				}
			})
		}
	}
}
