package fiberlock

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
)

// A Guard has the locks that Rules describe. [FromRules] makes a Guard. A Guard is safe for
// concurrent use.
type Guard struct{ guard *httplock.Guard }

// FromRules compiles rules. The name of each Rule is a method and a path as they are registered,
// such as "POST /orders/:id/pay". opts apply to all Rules. The error has a line for each Rule that
// is wrong.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (*Guard, error) {
	guard, err := httplock.FromRules(l, rules, ofFiber(opts)...)
	if err != nil {
		return nil, err
	}
	return &Guard{guard}, nil
}

// Handle registers handlers for a route, such as "POST /orders/:id/pay". If the route has a Rule,
// the handlers run under its lock. For a group of routes, write the paths of the Rules without the
// group's prefix.
func (g *Guard) Handle(router fiber.Router, route string, handlers ...fiber.Handler) {
	fields := strings.Fields(route)
	if len(fields) != 2 || len(handlers) == 0 {
		panic(fmt.Sprintf("fiberlock: Handle: the route %q needs a method, a path and a handler, such as \"POST /orders/:id\"", route))
	}
	if router == nil || slices.ContainsFunc(handlers, func(h fiber.Handler) bool { return h == nil }) {
		panic(fmt.Sprintf("fiberlock: Handle: the router or a handler of the route %q is nil", route))
	}
	method, path := strings.ToUpper(fields[0]), fields[1]
	var chain []any
	if locked := g.guard.Wrap(method+" "+path, framework.Resume); locked != framework.Resume {
		chain = append(chain, serve(locked))
	}
	for _, h := range handlers {
		chain = append(chain, h)
	}
	router.Add([]string{method}, path, chain[0], chain[1:]...)
}

// Validate returns an error that names the Rules which guard no route. Call it when all routes are
// registered, and end the program when it fails.
func (g *Guard) Validate() error { return g.guard.Validate() }

// Unguarded returns routes that were registered by Handle and have no Rule, although their method
// can change data. A route whose Rule has NoLock is not returned.
func (g *Guard) Unguarded() []string { return g.guard.Unguarded() }

var parameter = regexp.MustCompile(`:(\w+)|([*+])`)

// params returns the names of the parameters of a path such as "/orders/:id<int>/files/*".
func params(path string) (names []string) {
	for _, m := range parameter.FindAllStringSubmatch(path, -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}
