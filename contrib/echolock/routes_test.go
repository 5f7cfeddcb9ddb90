package echolock_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func request(t *testing.T, e *echo.Echo, method, path, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// A lock of all routes, or of a group, leaves requests without a route to Echo.
func TestA404StaysA404UnderALockOfTheServer(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	fine := func(c echo.Context) error { return c.NoContent(http.StatusOK) }
	pass := func(next echo.HandlerFunc) echo.HandlerFunc { return func(c echo.Context) error { return next(c) } }
	engine, group, inside := echo.New(), echo.New(), echo.New()
	engine.Use(echolock.MustNew(l, "order:{param.id}"))
	engine.POST("/orders/:id", fine)
	group.Group("/orders", echolock.MustNew(l, "order:{param.id}")).POST("/:id", fine)
	inside.Group("/orders", echolock.MustNew(l, "order:{param.id}"), pass).POST("/:id", fine)
	for name, e := range map[string]*echo.Echo{"engine": engine, "group": group, "group, another middleware inside": inside} {
		for request1, want := range map[string]int{
			"POST /orders/1": 200, "GET /unknown": 404, "GET /orders/1": 405, "OPTIONS /orders/1": 204,
		} {
			if name != "engine" && (request1 == "GET /orders/1" || request1 == "OPTIONS /orders/1") {
				want = 404 // a group has a route of its own for unknown requests
			}
			method, path, _ := strings.Cut(request1, " ")
			if w := request(t, e, method, path, ""); w.Code != want {
				t.Errorf("%s: %s: %d %s, want %d", name, request1, w.Code, w.Body, want)
			}
		}
	}
}

// Echo.Pre runs before the router, so a lock there does not know the route. No handler runs.
func TestALockBeforeTheRouterRunsNoHandler(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	guard, err := echolock.FromRules(l, httplock.Rules{"POST /orders/:id": {Key: "order:{param.id}"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]echo.MiddlewareFunc{"New": echolock.MustNew(l, "order:{param.id}"), "FromRules": guard.Middleware()} {
		e := echo.New()
		ran := false
		e.Pre(m)
		e.POST("/orders/:id", func(echo.Context) error { ran = true; return nil })
		if w := request(t, e, "POST", "/orders/1", ""); w.Code != 404 || ran {
			t.Errorf("%s: %d, ran %v", name, w.Code, ran)
		}
	}
}

// A body that Echo's Bind does not read as JSON makes no key.
func TestAKeyOfTheBodyIsWhatBindReads(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e, ran := echo.New(), false
	e.Any("/reserve", func(c echo.Context) error {
		ran = true
		var order struct {
			Sku string `json:"sku" form:"sku" query:"sku"`
		}
		if err := c.Bind(&order); err != nil {
			return err
		}
		lease, _ := echolock.FromContext(c)
		return c.String(http.StatusOK, lease.Key()+" "+order.Sku)
	}, echolock.MustNew(l, "stock:{body.sku}"))
	for contentType, code := range map[string]int{
		"application/json": 200, "application/json; charset=utf-8": 200, "": 415, "Application/JSON": 415, "application/vnd.api+json": 415, "application/x-www-form-urlencoded": 415,
	} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			ran = false
			w := request(t, e, method, "/reserve?sku=GPU", `{"sku":"pen"}`, "Content-Type", contentType)
			if w.Code != code || ran != (code == 200) || ran && w.Body.String() != "stock:pen pen" {
				t.Errorf("%s %q: %d %s", method, contentType, w.Code, w.Body)
			}
		}
	}
}

// A handler may keep the response of an outer middleware, and write to it.
func TestAResponseThatWasSentPastTheStoreIsNotReplacedByAnEmptyOne(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e, runs := echo.New(), 0
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("outer", c.Response())
			return next(c)
		}
	})
	e.POST("/pay", func(c echo.Context) error {
		runs++
		c.SetResponse(c.Get("outer").(*echo.Response))
		return c.String(http.StatusCreated, "paid")
	}, echolock.MustIdempotency(l, idempotency.NewMemory(), "shop"))
	for i, want := range []int{201, 409} {
		if w := request(t, e, "POST", "/pay", "", "Idempotency-Key", "k"); w.Code != want || runs != 1 {
			t.Errorf("%d: %d %s, %d runs", i, w.Code, w.Body, runs)
		}
	}
}

// override does what Echo's MethodOverride does. The tests use none of Echo's own middlewares,
// because their package needs more modules.
func override(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if method := c.Request().Header.Get(echo.HeaderXHTTPMethodOverride); method != "" {
			c.Request().Method = method
		}
		return next(c)
	}
}

// A client names another method, and MethodOverride obeys it after Echo has found the route. If the
// path has no such method, the request takes the lock of the path's only method, or is refused if
// there are several. If the path has it, its Rule counts, and not that of the handler that runs:
// Echo does not say which one it has found. Requests that need no lock, or that Echo answers 405 or
// 404, are still answered so. If the path belongs to a Group with a middleware, all other methods
// are answered 404.
func TestAnOverriddenMethodDoesNotAvoidTheLock(t *testing.T) {
	for _, validated := range []bool{true, false} {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		guard, err := echolock.FromRules(l, httplock.Rules{"POST /one/:id": {Key: "one:{param.id}"}, "POST /two/:id": {Key: "two:{param.id}"}, "POST /group": {Key: "group"}})
		if err != nil {
			t.Fatal(err)
		}
		e := echo.New()
		e.Use(override, guard.Middleware())
		key := func(c echo.Context) error {
			lease, ok := echolock.FromContext(c)
			if !ok {
				return c.String(http.StatusOK, "no lock")
			}
			return c.String(http.StatusOK, lease.Key())
		}
		e.POST("/one/:id", key)
		e.POST("/two/:id", key)
		e.PUT("/two/:id", key)
		e.POST("/free/:id", key)
		e.Match([]string{"GET", "POST"}, "/open", key)
		e.Match([]string{"GET", "HEAD"}, "/site/*", key)
		e.RouteNotFound("/site/*", func(c echo.Context) error { return c.String(http.StatusNotFound, "own page") })
		e.Group("/group", func(next echo.HandlerFunc) echo.HandlerFunc { return next }).POST("", key)
		if validated {
			if err := guard.Validate(e.Routes()); err != nil {
				t.Fatal(err)
			}
		}
		for _, tc := range []struct {
			method, path, override string
			code                   int
			body                   string
		}{
			{"POST", "/one/1", "", 200, "one:1"},
			{"POST", "/one/1", "PATCH", 200, "one:1"},
			{"POST", "/one/1", "GET", 200, "one:1"},
			{"POST", "/two/1", "", 200, "two:1"},
			{"POST", "/two/1", "GET", 500, "lock-misconfigured"},
			{"PUT", "/two/1", "", 200, "no lock"},
			{"POST", "/two/1", "PUT", 200, "no lock"},
			{"POST", "/open", "DELETE", 200, "no lock"},
			{"POST", "/site/x", "", 404, "own page"},
			{"POST", "/group", "GET", 404, "Not Found"},
			{"POST", "/group", echo.RouteNotFound, 404, "Not Found"},
			{"POST", "/one/1", echo.RouteNotFound, 200, "one:1"},
			{"POST", "/free/1", "GET", 200, "no lock"},
			{"GET", "/one/1", "", 405, "Not Allowed"},
			{"GET", "/two/1", "", 405, "Not Allowed"},
			{"GET", "/group", "", 404, "Not Found"},
		} {
			w := request(t, e, tc.method, tc.path, "", echo.HeaderXHTTPMethodOverride, tc.override)
			if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.body) {
				t.Errorf("validated %v: %s %s as %q: %d %s, want %d with %s", validated, tc.method, tc.path, tc.override, w.Code, w.Body, tc.code, tc.body)
			}
		}
	}
}

// A middleware changes the method and looks for the route again. The first look was answered 405,
// and what it has left in the context does not make the second route one of Echo's own.
func TestARouteThatIsFoundAtASecondLookKeepsItsLock(t *testing.T) {
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if method := c.Request().Header.Get(echo.HeaderXHTTPMethodOverride); method != "" {
				c.Request().Method = method
				e.Router().Find(method, c.Request().URL.Path, c)
				return c.Handler()(c)
			}
			return next(c)
		}
	})
	e.PUT("/orders/:id", func(c echo.Context) error {
		lease, ok := echolock.FromContext(c)
		if !ok {
			return c.String(http.StatusOK, "no lock")
		}
		return c.String(http.StatusOK, lease.Key())
	}, echolock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}"))
	if w := request(t, e, "POST", "/orders/1", "", echo.HeaderXHTTPMethodOverride, "PUT"); w.Code != http.StatusOK || w.Body.String() != "order:1" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// After a Flush the reply has begun, so the reply to a lost lock does not follow it.
func TestAFlushBeginsTheReply(t *testing.T) {
	store := lockertest.NewMemory()
	e := echo.New()
	e.GET("/events/:id", func(c echo.Context) error {
		c.Response().Flush()
		store.Steal("events:1")
		return nil
	}, echolock.MustNew(lockertest.NewLocker(t, store), "events:{param.id}"))
	if w := request(t, e, "GET", "/events/1", ""); w.Code != http.StatusOK || w.Body.Len() != 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// One middleware of a Guard serves several Echos, each with its own routes.
func TestAMiddlewareKnowsTheRoutesOfEachEcho(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	guard, err := echolock.FromRules(l, httplock.Rules{"PUT /orders/:id": {Key: "order:{param.id}"}})
	if err != nil {
		t.Fatal(err)
	}
	m := guard.Middleware()
	for _, method := range []string{"GET", "PUT"} {
		e := echo.New()
		e.Use(m)
		e.Add(method, "/orders/:id", func(c echo.Context) error {
			lease, _ := echolock.FromContext(c)
			return c.String(http.StatusOK, fmt.Sprint(lease != nil))
		})
		if w := request(t, e, method, "/orders/1", ""); w.Body.String() != fmt.Sprint(method == "PUT") {
			t.Errorf("%s: locked %s", method, w.Body)
		}
	}
}

// limited is a body whose first Read fails, as a body that is longer than Echo's BodyLimit allows.
type limited struct{ io.ReadCloser }

func (limited) Read([]byte) (int, error) { return 0, echo.ErrStatusRequestEntityTooLarge }

// unzipped is a body that Echo's Decompress has decoded.
type unzipped struct {
	*gzip.Reader
	io.Closer
}

func (u unzipped) Close() error { return u.Closer.Close() }

// A body that is longer than Echo's BodyLimit allows is answered 413, as without a lock. A
// compressed body that the client has cut is answered 400, because the client is still there.
func TestABodyThatEchosMiddlewaresCannotReadIsAnsweredAsWithoutALock(t *testing.T) {
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	_, _ = z.Write([]byte(`{"sku":"pen","pad":"jdjdjdjdjdjdjjdjdjdjdjdjdjdj"}`))
	_ = z.Close()
	for name, tc := range map[string]struct {
		outer func(body io.ReadCloser) io.ReadCloser
		body  []byte
		code  int
	}{
		"too long": {func(b io.ReadCloser) io.ReadCloser { return limited{b} }, []byte(`{"sku":"pen"}`), http.StatusRequestEntityTooLarge},
		"cut, and was compressed": {func(b io.ReadCloser) io.ReadCloser {
			z, err := gzip.NewReader(b)
			if err != nil {
				t.Error(err)
			}
			return unzipped{z, b}
		}, compressed.Bytes()[:compressed.Len()/2], http.StatusBadRequest},
	} {
		for _, lock := range []echo.MiddlewareFunc{
			nil,
			echolock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "stock"),
			echolock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "stock:{body.sku}"),
			echolock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "stock", httplock.WithStreamedBody()),
		} {
			e := echo.New()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					c.Request().Body = tc.outer(c.Request().Body)
					return next(c)
				}
			})
			var locks []echo.MiddlewareFunc
			if lock != nil {
				locks = append(locks, lock)
			}
			e.POST("/reserve", func(c echo.Context) error {
				var order struct{ Sku string }
				if err := c.Bind(&order); err != nil {
					return err
				}
				return c.NoContent(http.StatusOK)
			}, locks...)
			if w := request(t, e, "POST", "/reserve", string(tc.body), "Content-Type", "application/json"); w.Code != tc.code {
				t.Errorf("%s, with a lock %v: %d %s, want %d", name, lock != nil, w.Code, w.Body, tc.code)
			}
		}
	}
}

// A Group with a middleware has a handler of unknown requests on its own path. Such a request runs
// without a lock, and the Group's middlewares and its own page for it run. The handler of a route
// never runs so.
func TestA404OfAGroupNeedsNoLock(t *testing.T) {
	pass := func(next echo.HandlerFunc) echo.HandlerFunc { return func(c echo.Context) error { return next(c) } }
	preflight := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if c.Request().Method == http.MethodOptions {
				return c.NoContent(http.StatusNoContent)
			}
			return next(c)
		}
	}
	// again calls the next middleware once more if the answer is 404.
	again := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := next(c); err == nil {
				return nil
			}
			return next(c)
		}
	}
	page := func(c echo.Context) error { return c.String(http.StatusNotFound, "own page") }
	for _, inGroup := range []bool{false, true} {
		for _, several := range []bool{false, true} {
			for _, own := range []bool{false, true} {
				store := lockertest.NewMemory()
				guard, err := echolock.FromRules(lockertest.NewLocker(t, store), httplock.Rules{"POST /orders": {Key: "orders", Wait: locker.NoWait}})
				if err != nil {
					t.Fatal(err)
				}
				e, ran := echo.New(), false
				e.Use(override, again)
				middlewares := []echo.MiddlewareFunc{preflight, guard.Middleware(), pass}
				if !inGroup {
					e.Use(guard.Middleware())
					middlewares = []echo.MiddlewareFunc{preflight}
				}
				g := e.Group("/orders", middlewares...)
				g.POST("", func(c echo.Context) error {
					ran = true
					if _, ok := echolock.FromContext(c); !ok {
						t.Error("the handler runs without its lock")
					}
					return c.NoContent(http.StatusOK)
				})
				if several {
					g.GET("", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
				}
				text := "Not Found"
				if own {
					g.RouteNotFound("", page)
					text = "own page"
				}
				for _, busy := range []bool{false, true} {
					post := 200
					if busy {
						store.Occupy("orders", 0)
						post = 409
					}
					for _, tc := range []struct {
						method, override string
						code             int
						body             string
					}{
						{"DELETE", "", 404, text}, {"HEAD", "", 404, ""}, {"OPTIONS", "", 204, ""}, {"POST", "", post, ""},
						{"POST", "DELETE", 404, text},
					} {
						ran = false
						w := request(t, e, tc.method, "/orders", "", echo.HeaderXHTTPMethodOverride, tc.override)
						if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.body) || ran != (tc.code == 200) {
							t.Errorf("in the Group %v, several methods %v, own page %v, busy %v: %s as %q: %d %s, ran %v; want %d with %q",
								inGroup, several, own, busy, tc.method, tc.override, w.Code, w.Body, ran, tc.code, tc.body)
						}
					}
				}
			}
		}
	}
}

// Tests and warm-ups send requests before all routes are registered. A path that was unknown then,
// or had another method, must not run its new handler without the lock.
func TestARouteThatIsRegisteredAfterARequestHasItsLock(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	guard, err := echolock.FromRules(l, httplock.Rules{"POST /a/*": {Key: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	pass := func(next echo.HandlerFunc) echo.HandlerFunc { return func(c echo.Context) error { return next(c) } }
	locked := func(c echo.Context) error {
		_, ok := echolock.FromContext(c)
		return c.String(http.StatusOK, fmt.Sprint("locked ", ok))
	}
	for name, lock := range map[string]echo.MiddlewareFunc{"New": echolock.MustNew(l, "a"), "FromRules": guard.Middleware()} {
		for _, before := range []string{"", http.MethodGet} {
			e := echo.New()
			g := e.Group("/a", lock, pass)
			if before != "" {
				g.Add(before, "/*", locked)
			}
			if w := request(t, e, "POST", "/a/x", ""); w.Code != http.StatusNotFound {
				t.Errorf("%s, %q: %d %s", name, before, w.Code, w.Body)
			}
			g.POST("/*", locked)
			if w := request(t, e, "POST", "/a/x", ""); w.Body.String() != "locked true" {
				t.Errorf("%s, %q: %d %s", name, before, w.Code, w.Body)
			}
		}
	}
}

// A guard that no request passes guards nothing, although its Rules have their routes.
func TestAGuardWithoutItsMiddlewareIsNotValid(t *testing.T) {
	guard, err := echolock.FromRules(lockertest.NewLocker(t, lockertest.NewMemory()), httplock.Rules{"POST /a": {Key: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	e.POST("/a", func(echo.Context) error { return nil })
	if err := guard.Validate(e.Routes()); err == nil || !strings.Contains(err.Error(), "no request passes the guard; call e.Use(guard.Middleware())") {
		t.Error(err)
	}
	e.Use(guard.Middleware())
	if err := guard.Validate(e.Routes()); err != nil {
		t.Error(err)
	}
}
