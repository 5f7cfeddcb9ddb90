package echolock

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// A Guard has the middlewares that Rules describe. [FromRules] makes a Guard. A Guard is safe for
// concurrent use.
type Guard struct {
	locks map[string]func(http.Handler) http.Handler // by route, such as "POST /orders/:id"
}

// FromRules compiles rules. The name of each Rule is a method and a path as they are registered,
// such as "POST /orders/:id/pay". opts apply to all Rules. The error has a line for each Rule that
// is wrong.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (*Guard, error) {
	locks, err := rules.Compile(l, params, ofEcho(opts)...)
	if err != nil {
		return nil, fmt.Errorf("echolock: %w", err)
	}
	return &Guard{locks}, nil
}

// Middleware locks each request by the Rule of its route. Requests of other routes run without a
// lock. Register the middleware by Echo.Use, after Recover, tracing and authentication. Do not
// register it by Echo.Pre, which runs before the router.
func (g *Guard) Middleware() echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if lock, ok := g.locks[c.Request().Method+" "+c.Path()]; ok {
				return serve(c, lock, next)
			}
			return next(c)
		}
	}
}

// Validate returns an error that names the Rules without a route. Call it with Echo.Routes() when
// all routes are registered, and end the program when it fails.
func (g *Guard) Validate(routes []*echo.Route) error {
	var errs []error
	for _, route := range slices.Sorted(maps.Keys(g.locks)) {
		if !slices.ContainsFunc(routes, func(r *echo.Route) bool { return r.Method+" "+r.Path == route }) {
			errs = append(errs, fmt.Errorf("echolock: rule %q: there is no such route; correct its name, or register the route before Validate is called", route))
		}
	}
	return errors.Join(errs...)
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
