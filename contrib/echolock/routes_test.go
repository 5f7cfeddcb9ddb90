package echolock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/httplock"
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

// locked replies the key of its lock.
func locked(c echo.Context) error {
	if lease, ok := echolock.FromContext(c); ok {
		return c.String(http.StatusOK, lease.Key())
	}
	return c.String(http.StatusOK, "no lock")
}

func pass(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error { return next(c) }
}

// A lock of all routes or of a group leaves requests without a route to Echo, also if the key has a
// parameter of the path.
func TestARequestWithoutARouteIsAnsweredByEcho(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	engine, group, inside := echo.New(), echo.New(), echo.New()
	engine.Use(echolock.MustNew(l, "order:{param.id}"))
	engine.POST("orders/:id", locked)
	group.Group("/orders", echolock.MustNew(l, "order:{param.id}")).POST("/:id", locked)
	inside.Group("/orders", echolock.MustNew(l, "order:{param.id}"), pass).POST("/:id", locked)
	for name, e := range map[string]*echo.Echo{"engine": engine, "group": group, "group, another middleware inside": inside} {
		for route, want := range map[string]int{
			"POST /orders/1": 200, "GET /unknown": 404, "GET /orders": 404, "GET /orders/1": 405, "OPTIONS /orders/1": 204,
		} {
			if name != "engine" && (route == "GET /orders/1" || route == "OPTIONS /orders/1") {
				want = 404 // a group has a route of its own for unknown requests
			}
			method, path, _ := strings.Cut(route, " ")
			w := request(t, e, method, path, "")
			if w.Code != want || want == 200 && w.Body.String() != "order:1" {
				t.Errorf("%s: %s: %d %s, want %d", name, route, w.Code, w.Body, want)
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

func TestRulesGuardMethodsOfAPathAndNoOtherRequests(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	guard, err := echolock.FromRules(l, httplock.Rules{
		"POST /orders/:id": {Key: "order:{param.id}"}, "DELETE /orders/:id": {NoLock: true}, "POST /files/*": {Key: "file:{param.*}"},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	e.Use(guard.Middleware())
	e.Match([]string{"GET", "POST", "DELETE"}, "/orders/:id", locked)
	if err := guard.Validate(e.Routes()); err == nil || !strings.Contains(err.Error(), `rule "POST /files/*": there is no such route`) {
		t.Error(err)
	}
	e.POST("/files/*", locked)
	if err := guard.Validate(e.Routes()); err != nil {
		t.Error(err)
	}
	for route, want := range map[string]string{
		"POST /orders/1": "200 order:1", "GET /orders/1": "200 no lock", "DELETE /orders/1": "200 no lock", "POST /files/a/b": "200 file:a/b",
		"PUT /orders/1": "405", "OPTIONS /orders/1": "204", "GET /unknown": "404",
	} {
		method, path, _ := strings.Cut(route, " ")
		w := request(t, e, method, path, "")
		if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", route, got, want)
		}
	}
	if _, err := echolock.FromRules(l, httplock.Rules{"POST /a/:id": {Key: "a:{param.x}"}}); err == nil || !strings.Contains(err.Error(), "the path has only id") {
		t.Error(err)
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
