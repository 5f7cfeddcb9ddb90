package echolock

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
)

// A Guard has the middlewares that Rules describe. [FromRules] makes a Guard. A Guard is safe for
// concurrent use.
type Guard struct {
	guard   *httplock.Guard
	locks   map[string]http.Handler // by route, such as "POST /orders/:id"
	refused http.Handler            // answers requests whose route is not clear
	used    atomic.Bool             // Middleware was called
}

// FromRules compiles rules. The name of each Rule is a method and a path as they are registered,
// such as "POST /orders/:id/pay". opts apply to all Rules. The error has a line for each Rule that
// is wrong.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (*Guard, error) {
	g := &Guard{locks: make(map[string]http.Handler)}
	r := reader
	r.Guards = func(route string, lock func(http.Handler) http.Handler) { g.locks[route] = lock(framework.Resume) }
	opts = ofEcho(append([]httplock.Option{httplock.WithFramework(r)}, opts...))
	var err error
	if g.guard, err = httplock.FromRules(l, rules, opts...); err != nil {
		return nil, err
	}
	refuse, err := httplock.New(l, "{route}", append(opts, httplock.WithPart("route", unclear))...)
	if err != nil {
		return nil, err
	}
	g.refused = refuse(framework.Resume)
	return g, nil
}

// unclear is the error of a request whose route is not clear.
func unclear(r *http.Request) (string, error) {
	return "", fmt.Errorf("%w: a middleware has changed the method of %s after Echo has found its route; register this middleware by Echo.Pre",
		locker.ErrInvalidRule, visitOf(r).c.Path())
}

// Middleware locks each request by the Rule of its route. Requests of other routes run without a
// lock. Register the middleware by Echo.Use, after Recover, tracing, authentication and CORS: a
// middleware after it does not see the unknown methods of a path with a Rule in a Group with
// middlewares. Registered by Echo.Pre, which runs before the router, it answers every request 404.
//
// Register Echo's MethodOverride by Echo.Pre, because the Rule is found by the request's method: an
// override after the router runs the handler of one method under the Rule of another, or is
// answered 404 if the path belongs to a Group with middlewares.
func (g *Guard) Middleware() echo.MiddlewareFunc {
	g.used.Store(true)
	known := table[[]string]{read: methodsOf}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			switch {
			case c.Path() == "":
				return unrouted(c)
			case is(c.Handler(), notFound):
				return next(c)
			}
			methods := known.at(c, func(methods []string) bool { return slices.Contains(methods, c.Request().Method) })
			locked, ok := g.lockOf(c, methods)
			switch {
			case !ok:
				return notFound(c)
			case locked != nil:
				return serve(c, locked, next)
			}
			return next(c)
		}
	}
}

// methodsOf returns the methods of all routes, by path. RouteNotFound is one of these methods.
func methodsOf(e *echo.Echo) map[string][]string {
	methods := make(map[string][]string)
	for r := range routesOf(e) {
		methods[r.Path] = append(methods[r.Path], r.Method)
	}
	return methods
}

// routesOf returns all routes, also those of hosts.
func routesOf(e *echo.Echo) iter.Seq[*echo.Route] {
	all := e.Routes()
	for _, host := range e.Routers() {
		all = append(all, host.Routes()...)
	}
	return slices.Values(all)
}

// lockOf returns what locks or refuses the request, or nil if the request needs no lock; methods
// has all methods of the path that Echo has found. A middleware before the guard may have changed
// the request's method after Echo found the route. If the new method has no route, the only method
// of the path counts. If there are several, and one of them has a Rule, the request is refused.
//
// A path may also have a handler of unknown requests: each Group with a middleware registers one.
// Then Echo has found either this handler, or a handler with a Rule whose method was changed
// afterwards. Echo does not say which one, so ok is false: only the former may run without a lock.
func (g *Guard) lockOf(c echo.Context, methods []string) (locked http.Handler, ok bool) {
	method := c.Request().Method
	// RouteNotFound is the method of no request, unless a client has asked for it.
	if len(methods) > 0 && (method == echo.RouteNotFound || !slices.Contains(methods, method)) {
		guarded := slices.ContainsFunc(methods, func(m string) bool { return g.locks[m+" "+c.Path()] != nil })
		switch {
		case guarded && slices.Contains(methods, echo.RouteNotFound):
			return nil, false
		case guarded && len(methods) > 1:
			return g.refused, true
		}
		method = methods[0]
	}
	return g.locks[method+" "+c.Path()], true
}

// notFound answers a request with the handler that RouteNotFound has registered for its path. It
// does not call the next middleware, which could run the handler of a route without its lock. While
// it runs, c.Handler is notFound itself, and tells this to a guard that is a middleware of a Group.
func notFound(c echo.Context) error {
	e, r := c.Echo(), c.Request()
	router, ok := e.Routers()[r.Host]
	if !ok {
		router = e.Router()
	}
	found := e.NewContext(r, nil)
	router.Find(echo.RouteNotFound, echo.GetPath(r), found) // finds no handler of another method
	defer c.SetHandler(c.Handler())
	c.SetHandler(notFound)
	return found.Handler()(c)
}

// Validate returns an error that names the Rules without a route, and an error if Middleware was
// not called. Call it with Echo.Routes() when all routes are registered, and end the program when
// it fails. Echo does not say which middlewares a route has. So Validate does not detect that a
// route is outside of the Group that has the middleware: its requests run without a lock.
func (g *Guard) Validate(routes []*echo.Route) error {
	for _, r := range routes {
		g.guard.Wrap(r.Method+" "+r.Path, framework.Resume)
	}
	var unused error
	if !g.used.Load() {
		unused = errors.New("echolock: no request passes the guard; call e.Use(guard.Middleware()) before Validate")
	}
	return errors.Join(unused, g.guard.Validate())
}

// params returns the names of the parameters of a path such as "/orders/:id/files/*".
func params(path string) (names []string) {
	for segment := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(segment, ":"); ok {
			names = append(names, name)
		}
		if segment == "*" {
			names = append(names, "*")
		}
	}
	return names
}
