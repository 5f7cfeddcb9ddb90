package httplock

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
)

// A Guard has the middlewares of Rules. [FromRules] makes a Guard. A Guard is safe for concurrent
// use.
type Guard struct {
	reader framework.Reader
	made   map[string]func(http.Handler) http.Handler

	mu      sync.Mutex
	wrapped map[string]bool // routes; true: the route has a Rule
}

// FromRules compiles rules whose paths have their parameters in braces, like the paths of ServeMux
// and chi. opts apply to all Rules. The error has a line for each Rule that is wrong, or that l
// can never grant. Empty rules are an error, too. A Rule with OnceFor is wrong, too, if a part of
// its key that the client chooses has no filter that says how ids are spelled, such as |int.
func FromRules(l locker.Locker, rules Rules, opts ...Option) (*Guard, error) {
	cfg, _ := newConfig(opts) // the error is reported for each Rule
	made, err := rules.compile(l, opts)
	if err != nil {
		return nil, signed(opts, err)
	}
	if cfg.reader.Guards != nil {
		for route, lock := range made {
			cfg.reader.Guards(route, lock)
		}
	}
	return &Guard{reader: cfg.reader, made: made, wrapped: make(map[string]bool)}, nil
}

// Wrap returns h under the lock of route's Rule, or h itself if the route has no Rule:
//
//	mux.Handle("POST /orders/{id}", guard.Wrap("POST /orders/{id}", pay))
func (g *Guard) Wrap(route string, h http.Handler) http.Handler {
	name, err := normal(route)
	if err != nil { // a pattern without a method has no Rule
		name = route
	}
	middleware, ok := g.made[name]
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wrapped[name] = ok
	if !ok {
		return h
	}
	return middleware(h)
}

// Validate returns an error that names the Rules which guard no route. Such a Rule is misspelled,
// or its route was removed. Call it when all routes are registered, and end the program when it
// fails.
func (g *Guard) Validate() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, route := range slices.Sorted(maps.Keys(g.made)) {
		if !g.wrapped[route] {
			errs = append(errs, fmt.Errorf("%s: rule %q: %s", g.reader.Name, route, g.reader.Unused))
		}
	}
	return errors.Join(errs...)
}

// Unguarded returns, for a review, the wrapped routes that have no Rule and whose method usually
// changes something. A route whose Rule has NoLock is not listed.
func (g *Guard) Unguarded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var routes []string
	for route, guarded := range g.wrapped {
		method, _, _ := strings.Cut(route, " ")
		if !guarded && !safe(method) {
			routes = append(routes, route)
		}
	}
	slices.Sort(routes)
	return routes
}

var inBraces = regexp.MustCompile(`\{(\w+)[^}]*\}`)

// braced returns the parameters of a path such as "/orders/{id}/files/{path...}", or of chi's
// "/orders/{id:[0-9]+}".
func braced(path string) (names []string) {
	for _, m := range inBraces.FindAllStringSubmatch(path, -1) {
		names = append(names, m[1])
	}
	return names
}

// afterColons returns the parameters of a path such as "/orders/:id".
func afterColons(path string) (names []string) {
	for part := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(part, ":"); ok {
			names = append(names, name)
		}
	}
	return names
}
