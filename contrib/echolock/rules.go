package echolock

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
)

// A Guard has the middlewares that Rules describe. [FromRules] makes a Guard. A Guard is safe for
// concurrent use.
type Guard struct {
	guard *httplock.Guard
	locks map[string]http.Handler // by route, such as "POST /orders/:id"
}

// FromRules compiles rules. The name of each Rule is a method and a path as they are registered,
// such as "POST /orders/:id/pay". opts apply to all Rules. The error has a line for each Rule that
// is wrong.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (*Guard, error) {
	g := &Guard{locks: make(map[string]http.Handler)}
	r := reader
	r.Guards = func(route string, lock func(http.Handler) http.Handler) { g.locks[route] = lock(framework.Resume) }
	var err error
	if g.guard, err = httplock.FromRules(l, rules, ofEcho(append([]httplock.Option{httplock.WithFramework(r)}, opts...))...); err != nil {
		return nil, err
	}
	return g, nil
}

// Middleware locks each request by the Rule of its route. Requests of other routes run without a
// lock. Register the middleware by Echo.Use, after Recover, tracing and authentication. Registered
// by Echo.Pre, which runs before the router, it answers every request 404.
func (g *Guard) Middleware() echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if c.Path() == "" {
				return unrouted(c)
			}
			if locked, ok := g.locks[c.Request().Method+" "+c.Path()]; ok {
				return serve(c, locked, next)
			}
			return next(c)
		}
	}
}

// Validate returns an error that names the Rules without a route. Call it with Echo.Routes() when
// all routes are registered, and end the program when it fails.
func (g *Guard) Validate(routes []*echo.Route) error {
	for _, r := range routes {
		g.guard.Wrap(r.Method+" "+r.Path, framework.Resume)
	}
	return g.guard.Validate()
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
