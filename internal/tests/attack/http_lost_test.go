package attack_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// pays returns servers of all adapters, whose handlers work, and write a response with their
// frameworks.
func pays(t *testing.T, leases *lockertest.Memory, store idempotency.Store, rule httplock.Rule, work func()) map[string]http.Handler {
	t.Helper()
	l, opts := lockertest.NewLocker(t, leases), httplock.WithStore(store)
	gin.SetMode(gin.ReleaseMode)
	plain := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		work()
		_, _ = io.WriteString(w, "paid")
	})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		work()
		_, _ = io.WriteString(w, "paid")
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
	g.POST("/orders/:id", func(c *gin.Context) {
		work()
		c.String(http.StatusOK, "paid")
	})
	ofEcho, err := echolock.FromRules(l, echoRules, opts)
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	e.Use(ofEcho.Middleware())
	e.POST("/orders/:id", func(c echo.Context) error {
		work()
		return c.String(http.StatusOK, "paid")
	})
	return map[string]http.Handler{"net/http /orders/1": mux, "httputil.ReverseProxy /proxied/2": mux, "Gin /orders/3": g, "Echo /orders/4": e}
}

// pay sends a payment with the same key each time.
func pay(ctx context.Context, h http.Handler, path string, w http.ResponseWriter) {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", path)
	h.ServeHTTP(w, r)
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
			for name, h := range pays(t, leases, use, rule, work) {
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
