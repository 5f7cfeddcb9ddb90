package attack_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// gone is the response to a client that leaves while the response is sent.
type gone struct {
	http.ResponseWriter
	leave context.CancelFunc
}

func (g gone) Write([]byte) (int, error) {
	g.leave() // net/http ends the request's context, too
	return 0, syscall.EPIPE
}

// stuck is the response to a client that reads nothing.
type stuck struct {
	http.ResponseWriter
	over context.Context
	end  context.CancelFunc
}

func (s stuck) Write([]byte) (int, error) {
	<-s.over.Done()
	return 0, os.ErrDeadlineExceeded
}

func (s stuck) SetWriteDeadline(time.Time) error {
	s.end()
	return nil
}

// pays returns servers of all adapters, whose handlers work, and write a response with their
// frameworks. If a handler fails, its transaction is rolled back: the work is undone.
func pays(t *testing.T, leases *lockertest.Memory, store idempotency.Store, rule httplock.Rule, work, rollBack func(), response []byte) map[string]http.Handler {
	t.Helper()
	l, opts := lockertest.NewLocker(t, leases), httplock.WithStore(store)
	gin.SetMode(gin.ReleaseMode)
	plain := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		work()
		for part := range slices.Chunk(response, 10<<10) {
			if _, err := w.Write(part); err != nil {
				rollBack()
				return
			}
		}
	})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		work() // without a lock, so that nothing is promised when the proxy leaves
		_, _ = w.Write(response)
	}))
	t.Cleanup(upstream.Close)
	to, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	rules, echoRules := httplock.Rules{"POST /orders/{id}": rule, "POST /proxied/{id}": rule}, httplock.Rules{"POST /orders/:id": rule}
	guard, err := httplock.FromRules(l, rules, opts)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	guard.Handle(mux, "POST /orders/{id}", plain)
	guard.Handle(mux, "POST /proxied/{id}", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	ofGin, err := ginlock.FromRules(l, echoRules, opts)
	if err != nil {
		t.Fatal(err)
	}
	g := gin.New()
	ofGin.Mount(g)
	g.Use(func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 {
			rollBack()
		}
	})
	g.POST("/orders/:id", func(c *gin.Context) {
		work()
		c.Data(http.StatusOK, "text/plain", response)
	})
	ofEcho, err := echolock.FromRules(l, echoRules, opts)
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	e.Use(ofEcho.Middleware(), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			if err != nil {
				rollBack()
			}
			return err
		}
	})
	e.POST("/orders/:id", func(c echo.Context) error {
		work()
		return c.Blob(http.StatusOK, "text/plain", response)
	})
	return map[string]http.Handler{"net/http /orders/1": mux, "httputil.ReverseProxy /proxied/2": mux, "Gin /orders/3": g, "Echo /orders/4": e}
}

// pay sends a payment with the same key each time.
func pay(ctx context.Context, h http.Handler, path string, w http.ResponseWriter) {
	ctx = context.WithValue(ctx, http.ServerContextKey, &http.Server{}) // elsewhere ReverseProxy does not abort a response
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", path)
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	h.ServeHTTP(w, r)
}

// A response that does not reach its client, or that is too long to be held back, does not undo the
// work. So the handler does not get an error of the write, which frameworks pass on like an error
// of the handler: no transaction is rolled back, and a repeated request does not work again.
func TestWorkIsNotUndoneOrRepeatedBecauseItsResponseWasNotSent(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 200<<10)
	for promise, rule := range map[string]httplock.Rule{
		"Idempotency":           {Key: "order:{param.id}", Idempotency: "shop"},
		"OnceFor":               {Key: "order:{param.id}", OnceFor: time.Hour},
		"Idempotency, too long": {Key: "order:{param.id}", Idempotency: "shop", BufferedResponse: 1000},
		"OnceFor, too long":     {Key: "order:{param.id}", OnceFor: time.Hour, BufferedResponse: 1000},
		"Idempotency, stuck":    {Key: "order:{param.id}", Idempotency: "shop", StallTimeout: 10 * time.Millisecond},
		"OnceFor, stuck":        {Key: "order:{param.id}", OnceFor: time.Hour, StallTimeout: 10 * time.Millisecond},
	} {
		t.Run(promise, func(t *testing.T) {
			var runs, undone atomic.Int32
			work, rollBack := func() { runs.Add(1) }, func() { undone.Add(1) }
			for name, h := range pays(t, lockertest.NewMemory(), idempotency.NewMemory(), rule, work, rollBack, long) {
				runs.Store(0)
				undone.Store(0)
				_, path, _ := strings.Cut(name, " ")
				ctx, leave := context.WithCancel(t.Context())
				first, again := httptest.NewRecorder(), httptest.NewRecorder()
				switch {
				case rule.StallTimeout > 0:
					over, end := context.WithCancel(t.Context())
					pay(ctx, h, path, stuck{first, over, end})
					end()
				case rule.BufferedResponse == 0:
					pay(ctx, h, path, gone{first, leave})
				default:
					pay(ctx, h, path, first)
					if first.Code != http.StatusInternalServerError || !strings.Contains(first.Body.String(), httplock.CodeResponseTooLarge) {
						t.Errorf("%s: %d %.200s", name, first.Code, first.Body)
					}
				}
				leave()
				pay(t.Context(), h, path, again)
				if again.Code != http.StatusConflict || !strings.Contains(again.Body.String(), httplock.CodeDone) || runs.Load() != 1 || undone.Load() != 0 {
					t.Errorf("%s: %d %.200s, %d runs, %d undone", name, again.Code, again.Body, runs.Load(), undone.Load())
				}
			}
		})
	}
}

// rolledBack is a Transactor that counts what it has rolled back.
type rolledBack struct {
	idempotency.Store
	times atomic.Int32
}

func (r *rolledBack) Transact(ctx context.Context, work func(ctx context.Context) error) error {
	err := work(ctx)
	if err != nil {
		r.times.Add(1)
	}
	return err
}

// The lock of the order is lost while its handler pays, and the response is held back for its
// idempotency key. Nothing of it was sent, so the reply says that the lock was lost. The payment is
// not repeated: the next request gets the response, unless a Transactor has undone the payment.
func TestTheReplyToALostLockReplacesAHeldResponse(t *testing.T) {
	rule := httplock.Rule{Key: "order:{param.id}", Idempotency: "shop"}
	for kept, undoes := range map[string]bool{"stored": false, "undone": true} {
		t.Run(kept, func(t *testing.T) {
			var runs atomic.Int32
			path, leases, store := "", lockertest.NewMemory(), &rolledBack{Store: idempotency.NewMemory()}
			use := idempotency.Store(store)
			if !undoes {
				use = store.Store
			}
			work := func() {
				if runs.Add(1) == 1 {
					leases.Steal("order:" + path[len(path)-1:])
				}
			}
			for name, h := range pays(t, leases, use, rule, work, func() {}, []byte("paid")) {
				runs.Store(0)
				store.times.Store(0)
				_, path, _ = strings.Cut(name, " ")
				first, again := httptest.NewRecorder(), httptest.NewRecorder()
				pay(t.Context(), h, path, first)
				leases.Free("order:" + path[len(path)-1:])
				pay(t.Context(), h, path, again)
				if first.Code != http.StatusServiceUnavailable || !strings.Contains(first.Body.String(), httplock.CodeLost) {
					t.Errorf("%s: %d %s", name, first.Code, first.Body)
				}
				want := [...]int32{1, 0}
				if undoes {
					want = [...]int32{2, 1}
				}
				if got := [...]int32{runs.Load(), store.times.Load()}; again.Code != http.StatusOK || again.Body.String() != "paid" || got != want {
					t.Errorf("%s: %d %s, runs and rollbacks: %d, want %d", name, again.Code, again.Body, got, want)
				}
			}
		})
	}
}
