package echolock_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// send posts to a real server. It returns the status, the body and the header.
func send(t *testing.T, server *httptest.Server, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json") // Echo's binder reads no other type as JSON
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}

// serve starts Echo with one guarded route.
func serve(t *testing.T, guard echo.MiddlewareFunc, h echo.HandlerFunc, outside ...echo.MiddlewareFunc) *httptest.Server {
	t.Helper()
	e := echo.New()
	e.Use(outside...)
	e.POST("/orders/:id", h, guard)
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	return server
}

var errBank = errors.New("the bank does not answer")

// With echo.WrapMiddleware, each of these errors would become an empty reply 200, which would be
// stored for a day.
func TestAHandlerThatReturnsAnErrorHasFailed(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	once := httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour })
	for name, guard := range map[string]echo.MiddlewareFunc{
		"New":         echolock.MustNew(l, "a:{param.id}"),
		"Idempotency": echolock.MustIdempotency(l, idempotency.NewMemory(), "shop"),
		"Once":        echolock.MustNew(l, "c:{param.id}", once),
	} {
		runs, seen := 0, error(nil)
		log := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				seen = next(c)
				return seen
			}
		}
		server := serve(t, guard, func(c echo.Context) error {
			if runs++; runs == 1 {
				return errBank
			}
			return c.String(http.StatusCreated, "paid")
		}, log)
		code, body, _ := send(t, server, "/orders/1", "{}", "Idempotency-Key", "k")
		if code != 500 || !strings.Contains(body, "Internal Server Error") || seen != errBank {
			t.Errorf("%s: %d %q, a logger saw %v", name, code, body, seen)
		}
		if code, body, _ := send(t, server, "/orders/1", "{}", "Idempotency-Key", "k"); code != 201 || body != "paid" || runs != 2 {
			t.Errorf("%s, again: %d %q, %d runs", name, code, body, runs)
		}
	}
}

func TestAHandlerThatReturnsNilHasSucceeded(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	for name, tc := range map[string]struct {
		h    echo.HandlerFunc
		code int
	}{
		"a body":    {func(c echo.Context) error { return c.JSON(http.StatusCreated, 7) }, 201},
		"nothing":   {func(echo.Context) error { return nil }, 200},
		"not found": {func(echo.Context) error { return echo.ErrNotFound }, 404},
	} {
		server := serve(t, echolock.MustIdempotency(l, idempotency.NewMemory(), "shop"), tc.h)
		for i := range 2 {
			code, body, header := send(t, server, "/orders/1", "", "Idempotency-Key", name)
			if code != tc.code || name != "nothing" && (header.Get("Idempotency-Replayed") == "true") != (i == 1) {
				t.Errorf("%s, %d: %d %q %v", name, i, code, body, header)
			}
		}
	}
}

func TestPartsOfEcho(t *testing.T) {
	var got locker.Rule
	l := lockerFunc(func(r locker.Rule) error {
		got = r
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrBusy}
	})
	set := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", "ann")
			return next(c)
		}
	}
	server := serve(t, echolock.MustNew(l, "o:{param.id|int}:{value.user}:{ip}:{query.page}:{header.X-Tenant}:{body.sku}"), nil, set)
	code, body, _ := send(t, server, "/orders/042?page=7", `{"sku":"pen"}`, "X-Tenant", "acme")
	if code != 409 || !strings.Contains(body, httplock.CodeBusy) || got.Key != "o:42:ann:127.0.0.1:7:acme:pen" {
		t.Errorf("%d %s, %+v", code, body, got)
	}
	wrong := serve(t, echolock.MustNew(l, "order:{param.number}"), nil)
	if code, body, _ := send(t, wrong, "/orders/1", ""); code != 500 || !strings.Contains(body, "lock-misconfigured") {
		t.Errorf("a parameter that the route has not: %d %s", code, body)
	}
}

type lockerFunc func(locker.Rule) error

func (f lockerFunc) Acquire(_ context.Context, r locker.Rule) (*locker.Lease, error) {
	return nil, f(r)
}

func TestALostLockIsNoSuccess(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	server := serve(t, echolock.MustNew(l, "order:{param.id}"), func(c echo.Context) error {
		lease, ok := echolock.FromContext(c)
		if !ok {
			t.Error("there is no lease")
		}
		store.Steal(lease.Key())
		<-c.Request().Context().Done()
		return nil
	})
	if code, body, _ := send(t, server, "/orders/1", ""); code != 503 || !strings.Contains(body, "lock-lost") {
		t.Errorf("%d %s", code, body)
	}
}

// Echo 5 gives its handlers net/http's own request and writer. So Echo 5 needs no adapter package.
// httplock needs only the route's parameters and the handler's error.
func TestEchoFiveGoesThroughHTTPLock(t *testing.T) {
	type visitKey struct{}
	type visit struct {
		c   *echo5.Context
		err error
	}
	of := func(r *http.Request) *visit { return r.Context().Value(visitKey{}).(*visit) }
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	lock := httplock.MustIdempotency(l, idempotency.NewMemory(), "order:{param.id}",
		httplock.WithSuccess(func(r *http.Request, status int) bool { return of(r).err == nil && status < 400 }))
	guard := func(next echo5.HandlerFunc) echo5.HandlerFunc {
		return func(c *echo5.Context) error {
			v := &visit{c: c}
			r, w := c.Request().WithContext(context.WithValue(c.Request().Context(), visitKey{}, v)), c.Response()
			for _, p := range c.PathValues() {
				r.SetPathValue(p.Name, p.Value)
			}
			lock(http.HandlerFunc(func(held http.ResponseWriter, r *http.Request) {
				c.SetRequest(r)
				c.SetResponse(echo5.NewResponse(held, c.Echo().Logger))
				defer c.SetResponse(w)
				if v.err = next(c); v.err != nil {
					c.Echo().HTTPErrorHandler(c, v.err)
				}
			})).ServeHTTP(w, r)
			return v.err
		}
	}
	runs := 0
	e := echo5.New()
	e.POST("/orders/:id", func(c *echo5.Context) error {
		if runs++; runs == 1 {
			return errBank
		}
		return c.String(http.StatusCreated, "paid")
	}, guard)
	server := httptest.NewServer(e)
	defer server.Close()
	for i, want := range []int{500, 201, 201} {
		if code, body, _ := send(t, server, "/orders/1", "", "Idempotency-Key", "k"); code != want {
			t.Errorf("%d: %d %s, want %d", i, code, body, want)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}
