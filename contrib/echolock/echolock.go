// Package echolock guards Echo 4 routes with locks. Keys, filters, options and replies are those of
// package httplock. Echo's methods read the parts of keys: {param.id} is c.Param, {ip} is c.RealIP,
// {value.user} is what an earlier middleware has put into Echo's context by Set. {body.sku} needs
// the Content-Type application/json, in lower case, because c.Bind reads nothing else as JSON. A
// body can replace parameters of the path in c.Bind: read what is in the key by c.Param.
//
// An error that a handler returns is a failure, unless it has written a status before: then the
// status decides. Echo's HTTPErrorHandler writes its reply before the lock is released, and outer
// middlewares get the error, too. A handler that returns nil and writes nothing has succeeded.
//
// Register a lock at a route, at a Group or by Echo.Use. Without a route, Echo replies 404, 405, or
// 204 to OPTIONS, and nothing inside of a lock of [New] runs, also no RouteNotFound. So put CORS
// outside of the lock, and time-outs, too. echolock cannot see that a middleware has changed the
// method after the router: register MethodOverride by Echo.Pre, so that no client chooses a Rule.
//
// To shut down, call Drain of the Locker beside Shutdown of Echo, then Close of the Locker. Echo 5
// needs no package of its own: TestEchoFiveGoesThroughHTTPLock connects it to httplock.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package echolock

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// New returns a middleware that runs a handler under the lock that k names. A request waits for at
// most 5 s ([httplock.WithWait]). Then it is refused: 409, and 503 while Redis does not answer. The
// error says which argument is wrong. In the line of a route, call [MustNew]:
//
//	e.POST("/orders/:id/ship", ship, echolock.MustNew(l, "order:{param.id|int}"))
func New(l locker.Locker, k httplock.Key, opts ...httplock.Option) (echo.MiddlewareFunc, error) {
	return middleware(httplock.New(l, k, ofEcho(reader, opts)...))
}

// MustNew is [New] for the line of a route: it panics with the text of the error.
func MustNew(l locker.Locker, k httplock.Key, opts ...httplock.Option) echo.MiddlewareFunc {
	return framework.Must(New(l, k, opts...))
}

// NewIdempotency returns a middleware that runs a request with an Idempotency-Key once, and answers
// repeated requests with the same response; see [httplock.NewIdempotency].
func NewIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) (echo.MiddlewareFunc, error) {
	return middleware(httplock.NewIdempotency(l, store, scope, ofEcho(reader, opts)...))
}

// MustIdempotency is [NewIdempotency] for the line of a route: it panics as [MustNew] does.
func MustIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) echo.MiddlewareFunc {
	return framework.Must(NewIdempotency(l, store, scope, opts...))
}

// FromContext returns the lease under which c's handler runs; see [httplock.FromContext].
func FromContext(c echo.Context) (*locker.Lease, bool) { return httplock.FromContext(c.Request()) }

// A Guard has the locks of Rules. [FromRules] makes a Guard. A Guard is safe for concurrent use.
type Guard struct {
	guard *httplock.Guard
	locks map[string]http.Handler // by route, such as "POST /orders/:id"
}

// FromRules compiles rules. The name of each Rule is a method and a path as they are registered,
// such as "POST /orders/:id". opts apply to all Rules. The error has a line for each wrong Rule.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (_ *Guard, err error) {
	g := &Guard{locks: make(map[string]http.Handler)}
	r := reader
	r.Guards = func(route string, lock func(http.Handler) http.Handler) { g.locks[route] = lock(framework.Resume) }
	if g.guard, err = httplock.FromRules(l, rules, ofEcho(r, opts)...); err != nil {
		return nil, err
	}
	return g, nil
}

// Middleware locks each request by the Rule of its method and of c.Path(). Other requests run
// without a lock. Register it by Echo.Use, after Recover, tracing, authentication and CORS.
func (g *Guard) Middleware() echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if c.Path() == "" { // unknown, or before the router
				return echo.NotFoundHandler(c)
			}
			if locked := g.locks[c.Request().Method+" "+c.Path()]; locked != nil {
				return serve(c, locked, next)
			}
			return next(c)
		}
	}
}

// Validate returns an error that names the Rules without a route. Call it with Echo.Routes() when
// all routes are registered. It cannot see whether these routes have the middleware.
func (g *Guard) Validate(routes []*echo.Route) error {
	for _, r := range routes {
		g.guard.Wrap(r.Method+" "+r.Path, framework.Resume)
	}
	return g.guard.Validate()
}

func middleware(lock func(http.Handler) http.Handler, err error) (echo.MiddlewareFunc, error) {
	if err != nil {
		return nil, err
	}
	locked, known := lock(framework.Resume), new(sync.Map)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			switch {
			case routed(c, known):
				return serve(c, locked, next)
			case c.Get(echo.ContextKeyHeaderAllow) != nil:
				return c.Handler()(c) // Echo's own reply: 405, or 204 to OPTIONS
			}
			return echo.NotFoundHandler(c) // next could run the handler of a route without its lock
		}
	}, nil
}

// routed reports whether Echo has a route with c's method and path. known has what was found.
func routed(c echo.Context, known *sync.Map) bool {
	name := c.Request().Method + " " + c.Path()
	if _, ok := known.Load(name); ok {
		return true
	}
	all := c.Echo().Routes()
	for _, host := range c.Echo().Routers() {
		all = append(all, host.Routes()...)
	}
	for _, r := range all {
		known.Store(r.Method+" /"+strings.TrimPrefix(r.Path, "/"), true)
	}
	_, ok := known.Load(name)
	return ok
}

// visit is a request in httplock: its context, and the handler that httplock calls.
type visit struct {
	framework.Carrier
	c      echo.Context
	next   echo.HandlerFunc
	err    error // the error that next returned
	failed bool  // next returned an error, and has written no status before
}

func visitOf(r *http.Request) *visit { return framework.Carried[*visit](r) }

// serve handles a request with the handler locked, which runs framework.Resume under a lock.
func serve(c echo.Context, locked http.Handler, next echo.HandlerFunc) error {
	v := &visit{c: c, next: next}
	v.Carrier = framework.Carrier{Context: c.Request().Context(), Carried: v}
	r := c.Request().WithContext(v)
	defer framework.CarryForms(c.Request(), r) // runs also if a handler panics
	locked.ServeHTTP(c.Response(), r)
	return v.err // for loggers: the reply was written already
}

// ServeHTTP runs Echo's handlers with httplock's request and response.
func (v *visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, response := v.c.Request(), v.c.Response()
	v.c.SetRequest(r)
	v.c.SetResponse(echo.NewResponse(w, v.c.Echo()))
	defer func() {
		framework.CarryForms(r, v.c.Request())
		v.c.SetRequest(request)
		v.c.SetResponse(response)
	}()
	if v.err = v.next(v.c); v.err != nil {
		v.failed = !v.c.Response().Committed
		v.c.Error(v.err)
	}
}

// ofEcho returns the options for Echo, followed by the user's options.
func ofEcho(r framework.Reader, opts []httplock.Option) []httplock.Option {
	return append([]httplock.Option{
		httplock.WithFramework(r),
		httplock.WithSuccess(func(r *http.Request, status int) bool { return !visitOf(r).failed && status < http.StatusBadRequest }),
	}, opts...)
}

// reader reads requests with Echo's methods.
var reader = framework.Reader{
	Name:    "echolock",
	Sources: sources{},
	Params:  params,
	Value:   func(r *http.Request, name string) any { return visitOf(r).c.Get(name) },
	Unused:  "there is no such route; correct its name, or register the route before Validate is called",
}

// params returns the names of the parameters of a path such as "/orders/:id/files/*".
func params(path string) (names []string) {
	for segment := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(segment, ":"); ok || segment == "*" {
			names = append(names, name)
		}
	}
	return names
}

// sources reads the parts of keys. Echo reads queries, headers and cookies as net/http does.
type sources struct{ framework.NetHTTP }

// Param returns c.Param.
func (sources) Param(r *http.Request, name string) (string, bool) {
	c := visitOf(r).c
	return c.Param(name), slices.Contains(c.ParamNames(), name)
}

// IP returns c.RealIP.
func (sources) IP(r *http.Request) string { return visitOf(r).c.RealIP() }

// JSON reports whether c.Bind parses the body as JSON. Bind ignores a body whose length is 0.
func (sources) JSON(r *http.Request) bool {
	base, _, _ := strings.Cut(r.Header.Get(echo.HeaderContentType), ";")
	return strings.TrimSpace(base) == echo.MIMEApplicationJSON && r.ContentLength != 0
}
