package keys_test

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// templates has the key of each path of the servers. The name of the key is the path.
var templates = map[string]httplock.Key{
	"query": "query:{query.id}", "header": "header:{header.X-Tenant}", "cookie": "cookie:{cookie.session}", "param": "param:{param.id}",
	"body": "body:{body.sku}", "number": "number:{body.sku}", "items": "items:{body.items.*.sku}",
}

// These are what handlers bind a body to. Gin's form binding takes the names of fields that have no
// tag for forms.
type (
	article struct {
		Sku string `json:"sku"`
	}
	numbered struct {
		Sku float64 `json:"sku"`
	}
	basket struct {
		Items []article `json:"items"`
	}
	values struct {
		ID     string `form:"id" query:"id" uri:"id" param:"id"`
		Tenant string `header:"X-Tenant"`
		User   string `cookie:"session"`
	}
)

// readBody binds a body as the path says, and returns what was read.
func readBody(path string, bind func(any) error) [][]string {
	switch path {
	case "body":
		var to article
		return bound(bind(&to), to.Sku)
	case "number":
		var to numbered
		err := bind(&to)
		text, inexact := template.Format(to.Sku)
		return bound(cmp.Or(err, inexact), text) // a float64 has lost digits of a large number
	default:
		var to basket
		if bind(&to) != nil {
			return nil
		}
		all := []string{}
		for _, item := range to.Items {
			all = append(all, item.Sku)
		}
		return [][]string{all}
	}
}

// readJSON binds a body as handlers of net/http do.
func readJSON(r *http.Request) func(any) error {
	return func(to any) error { return json.NewDecoder(r.Body).Decode(to) }
}

func newLocker(f *testing.F) locker.Locker { return lockertest.NewLocker(f, lockertest.NewMemory()) }

// serve starts a server of net/http, and returns its address.
func serve(f testing.TB, h http.Handler) string {
	f.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	f.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func readHTTP(r *http.Request, path string) [][]string {
	switch path {
	case "query":
		return [][]string{one(r.URL.Query().Get("id"))}
	case "header":
		return [][]string{one(r.Header.Get("X-Tenant"))}
	case "cookie":
		cookie, err := r.Cookie("session")
		if err != nil {
			return [][]string{one("")}
		}
		return [][]string{one(cookie.Value)}
	case "param":
		return [][]string{one(r.PathValue("id"))}
	}
	return readBody(path, readJSON(r))
}

func FuzzNetHTTP(f *testing.F) {
	l, mux := newLocker(f), http.NewServeMux()
	for path, k := range templates {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(seenHeader, tell(locker.LeasesFromContext(r.Context()), readHTTP(r, path)...))
		})
		mux.Handle(route(path, "/{id}"), httplock.MustNew(l, k)(h))
	}
	fuzz(f, serve(f, mux))
}

// route returns the path of a route, with its parameter.
func route(path, param string) string {
	if path == "param" {
		return "/param" + param
	}
	return "/" + path
}

func FuzzChi(f *testing.F) {
	l, mux := newLocker(f), chi.NewMux()
	for path, k := range templates {
		mux.With(httplock.MustNew(l, k)).HandleFunc(route(path, "/{id}"), func(w http.ResponseWriter, r *http.Request) {
			readings := readHTTP(r, path)
			if path == "param" {
				readings = append(readings, one(chi.URLParam(r, "id")))
			}
			w.Header().Set(seenHeader, tell(locker.LeasesFromContext(r.Context()), readings...))
		})
	}
	fuzz(f, serve(f, mux))
}

func FuzzGin(f *testing.F) {
	gin.SetMode(gin.ReleaseMode)
	l, e := newLocker(f), gin.New()
	for path, k := range templates {
		e.Any(route(path, "/:id"), ginlock.MustNew(l, k), func(c *gin.Context) {
			c.Header(seenHeader, tell(locker.LeasesFromContext(c.Request.Context()), readGin(c, path)...))
		})
	}
	fuzz(f, serve(f, e))
}

func readGin(c *gin.Context, path string) [][]string {
	var to values
	switch path {
	case "query":
		return append(bound(c.ShouldBindQuery(&to), to.ID), one(c.Query("id")), one(c.Request.URL.Query().Get("id")))
	case "header":
		return append(bound(c.ShouldBindHeader(&to), to.Tenant), one(c.GetHeader("X-Tenant")))
	case "cookie":
		value, _ := c.Cookie("session")
		return [][]string{one(value)}
	case "param":
		return append(bound(c.ShouldBindUri(&to), to.ID), one(c.Param("id")))
	}
	return readBody(path, func(to any) error { return c.ShouldBind(to) })
}

func FuzzEcho(f *testing.F) {
	l, e := newLocker(f), echo.New()
	for path, k := range templates {
		e.Any(route(path, "/:id"), func(c echo.Context) error {
			c.Response().Header().Set(seenHeader, tell(locker.LeasesFromContext(c.Request().Context()), readEcho(c, path)...))
			return c.NoContent(http.StatusOK)
		}, echolock.MustNew(l, k))
	}
	fuzz(f, serve(f, e))
}

func readEcho(c echo.Context, path string) [][]string {
	var to values
	b := &echo.DefaultBinder{}
	switch path {
	case "query":
		return append(bound(b.BindQueryParams(c, &to), to.ID), one(c.QueryParam("id")))
	case "header":
		return append(bound(b.BindHeaders(c, &to), to.Tenant), one(c.Request().Header.Get("X-Tenant")))
	case "cookie":
		cookie, err := c.Cookie("session")
		if err != nil {
			return [][]string{one("")}
		}
		return [][]string{one(cookie.Value)}
	case "param":
		return append(bound(b.BindPathParams(c, &to), to.ID), one(c.Param("id")))
	}
	return readBody(path, c.Bind)
}

// Echo 5 needs no adapter: these lines connect it to httplock.
func FuzzEcho5(f *testing.F) {
	l, e := newLocker(f), echo5.New()
	for path, k := range templates {
		lock := httplock.MustNew(l, k)
		guard := func(next echo5.HandlerFunc) echo5.HandlerFunc {
			return func(c *echo5.Context) (err error) {
				r := c.Request()
				for _, p := range c.PathValues() {
					r.SetPathValue(p.Name, p.Value)
				}
				lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c.SetRequest(r)
					c.SetResponse(echo5.NewResponse(w, c.Echo().Logger))
					err = next(c)
				})).ServeHTTP(c.Response(), r)
				return err
			}
		}
		e.Any(route(path, "/:id"), func(c *echo5.Context) error {
			c.Response().Header().Set(seenHeader, tell(locker.LeasesFromContext(c.Request().Context()), readEcho5(c, path)...))
			return c.NoContent(http.StatusOK)
		}, guard)
	}
	fuzz(f, serve(f, e))
}

func readEcho5(c *echo5.Context, path string) [][]string {
	var to values
	switch path {
	case "query":
		return append(bound(echo5.BindQueryParams(c, &to), to.ID), one(c.QueryParam("id")))
	case "header":
		return append(bound(echo5.BindHeaders(c, &to), to.Tenant), one(c.Request().Header.Get("X-Tenant")))
	case "cookie":
		cookie, err := c.Cookie("session")
		if err != nil {
			return [][]string{one("")}
		}
		return [][]string{one(cookie.Value)}
	case "param":
		return append(bound(echo5.BindPathValues(c, &to), to.ID), one(c.Param("id")))
	}
	return readBody(path, c.Bind)
}

func FuzzFiber(f *testing.F) {
	l, app := newLocker(f), fiber.New()
	for path, k := range templates {
		app.All(route(path, "/:id"), fiberlock.MustNew(l, k), func(c fiber.Ctx) error {
			readings := readFiber(c, path)
			c.Response().Reset() // c.Body sets the status of a body that it cannot decode
			c.Set(seenHeader, tell(locker.LeasesFromContext(c.Context()), readings...))
			return nil
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	f.Cleanup(func() {
		if err := app.Shutdown(); err != nil {
			f.Error(err)
		}
		if err := <-served; err != nil {
			f.Error(err)
		}
	})
	fuzz(f, listener.Addr().String())
}

func readFiber(c fiber.Ctx, path string) [][]string {
	var to values
	switch path {
	case "query":
		return append(bound(c.Bind().Query(&to), to.ID), one(c.Query("id")))
	case "header":
		return append(bound(c.Bind().Header(&to), to.Tenant), one(c.Get("X-Tenant")))
	case "cookie":
		return append(bound(c.Bind().Cookie(&to), to.User), one(c.Cookies("session")))
	case "param":
		return append(bound(c.Bind().URI(&to), to.ID), one(c.Params("id")))
	}
	readings := readBody(path, c.Bind().Body)
	readings = append(readings, readBody(path, func(to any) error { return json.Unmarshal(c.Body(), to) })...)
	return append(readings, readBody(path, func(to any) error { return json.Unmarshal(c.BodyRaw(), to) })...)
}
