package ginlock

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock/httplock"
	"github.com/latchkit/latchkit/locker"
)

type (
	// Rules say which routes are guarded, and how: all of a service's locks on one page. The names are method and path as
	// they are registered, such as "POST /orders/:id/pay". [ParseRules] reads them from YAML.
	Rules = httplock.Rules

	// A Rule guards a route.
	Rule = httplock.Rule
)

// A Guard is the middlewares of Rules. [FromRules] makes one; it is safe for concurrent use.
type Guard struct {
	locks map[string]map[string]func(http.Handler) http.Handler // by method and path
}

// FromRules compiles rules. opts hold for all of them. The error has a line for each Rule that is wrong: a key that makes no
// sense, a parameter that the path does not have, a member of a body that a GET does not have, a route that is there twice.
// Whether there are such routes, [Guard.Validate] says once they are registered.
func FromRules(l locker.Locker, rules Rules, opts ...Option) (*Guard, error) {
	made, err := rules.Compile(l, params, ofGin(opts)...)
	if err != nil {
		return nil, fmt.Errorf("ginlock: %w", err)
	}
	g := &Guard{locks: make(map[string]map[string]func(http.Handler) http.Handler)}
	for route, lock := range made {
		method, path, _ := strings.Cut(route, " ")
		if g.locks[method] == nil {
			g.locks[method] = make(map[string]func(http.Handler) http.Handler)
		}
		g.locks[method][path] = lock
	}
	return g, nil
}

// Handler returns a middleware that locks each request by the Rule of its route. Requests of other routes pass. Register it
// before the routes, by engine.Use or on a group.
func (g *Guard) Handler() gin.HandlerFunc {
	return func(c *gin.Context) {
		if lock, ok := g.locks[c.Request.Method][c.FullPath()]; ok {
			serve(c, lock)
		}
	}
}

// Validate returns an error that names the Rules without a route: call it with engine.Routes() when all are registered, and
// end the program when it fails. A lock that guards nothing is worse than none.
func (g *Guard) Validate(routes gin.RoutesInfo) error {
	var errs []error
	for _, method := range slices.Sorted(maps.Keys(g.locks)) {
		for _, path := range slices.Sorted(maps.Keys(g.locks[method])) {
			if !slices.ContainsFunc(routes, func(r gin.RouteInfo) bool { return r.Method == method && r.Path == path }) {
				errs = append(errs, fmt.Errorf("ginlock: rule %q: there is no such route%s", method+" "+path, meant(routes, method, path)))
			}
		}
	}
	return errors.Join(errs...)
}

// meant names what may have been meant: another method of the path, or a path that differs in its parameters' names or its
// last slash.
func meant(routes gin.RoutesInfo, method, path string) string {
	var like []string
	for _, r := range routes {
		if r.Path == path || r.Method == method && shape(r.Path) == shape(path) {
			like = append(like, fmt.Sprintf("%q", r.Method+" "+r.Path))
		}
	}
	if len(like) == 0 {
		return "; correct its name, or register the route before Validate is called"
	}
	return "; did you mean " + strings.Join(like, " or ") + "?"
}

// shape is a path without what it is easy to get wrong.
func shape(path string) string {
	segments := strings.Split(strings.Trim(strings.ToLower(path), "/"), "/")
	for i, s := range segments {
		if s != "" && (s[0] == ':' || s[0] == '*') {
			segments[i] = ":"
		}
	}
	return strings.Join(segments, "/")
}

// params lists the parameters of "/orders/:id/files/*path".
func params(path string) (names []string) {
	for segment := range strings.SplitSeq(path, "/") {
		if i := strings.IndexAny(segment, ":*"); i >= 0 {
			names = append(names, segment[i+1:])
		}
	}
	return names
}
