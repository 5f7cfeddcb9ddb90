package ginlock

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
)

// A Guard locks the requests of the routes in a table of Rules. [FromRules] makes a Guard, and
// [Guard.Mount] puts it in front of an engine's routes. A Guard is safe for concurrent use.
type Guard struct {
	guard *httplock.Guard
	locks map[string]http.Handler // by route, such as "POST /orders/:id"

	mu    sync.Mutex
	used  bool     // Handler was called
	early []string // routes that were registered before Mount
}

// FromRules compiles rules. opts apply to all Rules. The error has a line for each wrong Rule. A
// Rule is wrong if its key is invalid, reads a parameter that the path does not have, or reads the
// body of a GET. A Rule is also wrong if its route occurs twice, or if l can never grant its mode
// or one of its times. A Rule with OnceFor is wrong if a part of its key that the client chooses
// has no filter that says how ids are spelled, such as |int. Empty rules are an error, too.
// [Guard.Validate] finds Rules without a route, once the routes are registered.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (*Guard, error) {
	g := &Guard{locks: make(map[string]http.Handler)}
	r := reader
	r.Guards = func(route string, lock func(http.Handler) http.Handler) { g.locks[route] = lock(framework.Resume) }
	var err error
	if g.guard, err = httplock.FromRules(l, rules, ofGin(append([]httplock.Option{httplock.WithFramework(r)}, opts...))...); err != nil {
		return nil, err
	}
	return g, nil
}

// Mount puts the guard in front of all routes that are registered from now on. Call Mount after
// Recovery, tracing and authentication, and before the first Group and the first route. Gin copies
// the engine's middlewares into a group when the group is made, so the routes of an earlier group
// run without a lock, and Validate cannot see this. When all routes are registered, call the
// returned function, which is Validate, and end the program when it fails:
//
//	validate := guard.Mount(engine)
//	engine.POST("/orders/:id/pay", pay)
//	if err := validate(); err != nil {
//		log.Fatal(err)
//	}
func (g *Guard) Mount(engine *gin.Engine) (validate func() error) {
	g.mu.Lock()
	for _, r := range engine.Routes() {
		g.early = append(g.early, r.Method+" "+r.Path)
	}
	g.mu.Unlock()
	engine.Use(g.Handler())
	return func() error { return g.Validate(engine.Routes()) }
}

// Handler returns a middleware that locks each request by the Rule of its route. Requests of
// routes without a Rule run without a lock. Register the middleware on a group of routes, before
// the routes. For all routes of an engine, call Mount instead. A middleware must not change the
// request's method: Gin has found the handler by then, and the Rule is found by the method.
func (g *Guard) Handler() gin.HandlerFunc {
	g.mu.Lock()
	g.used = true
	g.mu.Unlock()
	return func(c *gin.Context) {
		if locked, ok := g.locks[c.Request.Method+" "+c.FullPath()]; ok {
			serve(c, locked)
		}
	}
}

// Validate returns an error that names the Rules without a route, and the Rules whose route does
// not pass the guard. A route does not pass the guard if Handler was not called, or if the route
// was registered before Mount. Validate does not find a route that was registered later on a group
// that was made before Mount, because Gin does not show the middlewares of a route: call Mount
// before the first Group. Call Validate with engine.Routes() when all routes are registered,
// and end the program when it fails. Otherwise a route could seem guarded although it is not.
func (g *Guard) Validate(routes gin.RoutesInfo) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	registered := make(map[string]bool)
	for _, r := range routes {
		registered[r.Method+" "+r.Path] = true
	}
	var errs []error
	if !g.used {
		errs = append(errs, errors.New("ginlock: no request passes the guard; call guard.Mount(engine), or use guard.Handler(), before the routes are registered"))
	}
	for _, route := range slices.Sorted(maps.Keys(g.locks)) {
		switch {
		case !registered[route]:
			errs = append(errs, fmt.Errorf("ginlock: rule %q: there is no such route%s", route, meant(routes, route)))
		case slices.Contains(g.early, route):
			errs = append(errs, fmt.Errorf("ginlock: rule %q: the route was registered before Mount, so its requests do not pass the guard; call Mount first", route))
		}
	}
	return errors.Join(errs...)
}

// Unguarded returns, for a review, the routes that have no Rule and whose method usually changes
// something. A route whose Rule has NoLock is not listed.
func (g *Guard) Unguarded(routes gin.RoutesInfo) []string {
	for _, r := range routes {
		g.guard.Wrap(r.Method+" "+r.Path, framework.Resume)
	}
	return g.guard.Unguarded()
}

// meant names what the author of the Rule may have meant: another method of the path, or a path
// that differs in its parameters' names or its last slash.
func meant(routes gin.RoutesInfo, route string) string {
	method, path, _ := strings.Cut(route, " ")
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

// shape returns a path without the details that are often misspelled: upper and lower case, the
// names of parameters, and the last slash.
func shape(path string) string {
	segments := strings.Split(strings.Trim(strings.ToLower(path), "/"), "/")
	for i, s := range segments {
		if s != "" && (s[0] == ':' || s[0] == '*') {
			segments[i] = ":"
		}
	}
	return strings.Join(segments, "/")
}

// params returns the parameters of a path such as "/orders/:id/files/*path".
func params(path string) (names []string) {
	for segment := range strings.SplitSeq(path, "/") {
		if i := strings.IndexAny(segment, ":*"); i >= 0 {
			names = append(names, segment[i+1:])
		}
	}
	return names
}
