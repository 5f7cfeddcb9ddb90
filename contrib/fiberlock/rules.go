package fiberlock

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// A Guard has the locks that Rules describe. [FromRules] makes a Guard. A Guard is safe for
// concurrent use.
type Guard struct {
	locks map[string]func(http.Handler) http.Handler // by route, such as "POST /orders/:id"

	mu    sync.Mutex
	added map[string]bool // the registered routes; true: the route has a Rule
}

// FromRules compiles rules. The name of each Rule is a method and a path as they are registered,
// such as "POST /orders/:id/pay". opts apply to all Rules. The error has a line for each Rule that
// is wrong.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (*Guard, error) {
	locks, err := rules.Compile(l, params, ofFiber(opts)...)
	if err != nil {
		return nil, fmt.Errorf("fiberlock: %w", err)
	}
	return &Guard{locks: locks, added: make(map[string]bool)}, nil
}

// Handle registers handlers for a route, such as "POST /orders/:id/pay". If the route has a Rule,
// the handlers run under its lock. For a group of routes, write the paths of the Rules without the
// group's prefix.
func (g *Guard) Handle(router fiber.Router, route string, handlers ...fiber.Handler) {
	fields := strings.Fields(route)
	if len(fields) != 2 || len(handlers) == 0 {
		panic(fmt.Sprintf("fiberlock: Handle: the route %q needs a method, a path and a handler, such as \"POST /orders/:id\"", route))
	}
	method, path := strings.ToUpper(fields[0]), fields[1]
	lock, guarded := g.locks[method+" "+path]
	g.mu.Lock()
	g.added[method+" "+path] = guarded
	g.mu.Unlock()
	var chain []any
	if guarded {
		chain = append(chain, handler(lock))
	}
	for _, h := range handlers {
		chain = append(chain, h)
	}
	router.Add([]string{method}, path, chain[0], chain[1:]...)
}

// Validate returns an error that names the Rules which guard no route. Call it when all routes are
// registered, and end the program when it fails.
func (g *Guard) Validate() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, route := range slices.Sorted(maps.Keys(g.locks)) {
		if !g.added[route] {
			errs = append(errs, fmt.Errorf("fiberlock: rule %q: no route was registered by Handle; correct its name, or register the route", route))
		}
	}
	return errors.Join(errs...)
}

// Unguarded returns routes that were registered by Handle and have no Rule, although their method
// can change data. A route whose Rule has NoLock is not returned.
func (g *Guard) Unguarded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var routes []string
	for route, guarded := range g.added {
		switch method, _, _ := strings.Cut(route, " "); method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		default:
			if !guarded {
				routes = append(routes, route)
			}
		}
	}
	slices.Sort(routes)
	return routes
}

var parameter = regexp.MustCompile(`:(\w+)|([*+])`)

// params returns the names of the parameters of a path such as "/orders/:id<int>/files/*".
func params(path string) (names []string) {
	for _, m := range parameter.FindAllStringSubmatch(path, -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}
