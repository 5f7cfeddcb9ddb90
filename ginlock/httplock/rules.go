package httplock

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Rules say which routes are guarded, and how: all of a service's locks on one page. The names are method and path as the
// router has them, such as "POST /orders/{id}/pay".
type Rules map[string]Rule

// A Rule guards a route. Its fields are those of locker.Rule; what is left empty is set by the options that come with the
// Rules, and by their defaults.
type Rule struct {
	_ struct{} // keyed literals only

	Key          Key           // "order:{param.id}"; it must be there
	Name         string        // see WithName
	Mode         locker.Mode   // Exclusive, unless ModeByMethod says otherwise
	ModeByMethod bool          // see WithModeByMethod
	TTL          time.Duration // see WithTTL
	Wait         time.Duration // see WithWait
	AtLeast      time.Duration // see locker.Rule
	AtMost       time.Duration // see locker.Rule
	Once         time.Duration // see locker.Rule
	Status       int           // see WithStatus
	FailOpen     bool          // see WithFailOpen
}

// Options returns what the Rule says, as options.
func (r Rule) Options() []Option {
	var opts []Option
	add := func(is bool, o Option) {
		if is {
			opts = append(opts, o)
		}
	}
	add(r.Name != "", WithName(r.Name))
	add(r.TTL != 0, WithTTL(r.TTL))
	add(r.Wait != 0, WithWait(r.Wait))
	add(r.Status != 0, WithStatus(r.Status))
	add(r.ModeByMethod, WithModeByMethod())
	add(r.FailOpen, WithFailOpen())
	add(r.Mode != 0 || r.AtLeast != 0 || r.AtMost != 0 || r.Once != 0, WithRule(func(_ *http.Request, rule *locker.Rule) {
		rule.Mode = max(rule.Mode, r.Mode)
		rule.AtLeast, rule.AtMost, rule.Once = cmp.Or(r.AtLeast, rule.AtLeast), cmp.Or(r.AtMost, rule.AtMost), cmp.Or(r.Once, rule.Once)
	}))
	return opts
}

// Compile makes the middleware of each Rule. params lists the names of the parameters in a path, as the router writes them;
// opts hold for all Rules. The error has a line for each Rule that is wrong, with its name.
func (rs Rules) Compile(l locker.Locker, params func(path string) []string, opts ...Option) (map[string]func(http.Handler) http.Handler, error) {
	made := make(map[string]func(http.Handler) http.Handler, len(rs))
	spelled := make(map[string]string, len(rs))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(rs)) {
		bad := func(err error) { errs = append(errs, fmt.Errorf("rule %q: %w", name, err)) }
		route, err := normal(name)
		if err != nil {
			bad(err)
			continue
		}
		if twin, ok := spelled[route]; ok {
			bad(fmt.Errorf("it is the same route as rule %q; keep one of them", twin))
			continue
		}
		spelled[route] = name
		middleware, err := rs[name].compile(l, route, params, opts)
		if err != nil {
			bad(err)
			continue
		}
		made[route] = middleware
	}
	return made, errors.Join(errs...)
}

func (r Rule) compile(l locker.Locker, route string, params func(path string) []string, opts []Option) (func(http.Handler) http.Handler, error) {
	if r.Key == "" {
		return nil, errors.New("it has no Key; name what the route changes, such as \"order:{param.id}\"")
	}
	if r.Mode > locker.Shared {
		return nil, fmt.Errorf("its Mode %d is neither Exclusive nor Shared", r.Mode)
	}
	for field, value := range map[string]time.Duration{"AtLeast": r.AtLeast, "AtMost": r.AtMost, "Once": r.Once} {
		if value != 0 && value < time.Millisecond {
			return nil, fmt.Errorf("its %s is %v; the smallest is 1ms, 0 leaves it out", field, value)
		}
	}
	opts = append(slices.Clone(opts), r.Options()...)
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	template, err := cfg.grammar().Compile(r.Key)
	if err != nil {
		return nil, err
	}
	method, path, _ := strings.Cut(route, " ")
	declared := params(path)
	for _, part := range template.Parts() {
		switch {
		case part.Source == "param" && !slices.Contains(declared, part.Name):
			return nil, fmt.Errorf("its key %q has {param.%s}, and the path has %s", r.Key, part.Name, listed(declared))
		case part.Source == "body" && (safe(method) || method == http.MethodConnect):
			return nil, fmt.Errorf("its key %q reads the body, and a %s has none; take {param.NAME}, {query.NAME} or {header.NAME}", r.Key, method)
		}
	}
	return Make(l, r.Key, opts...)
}

func listed(params []string) string {
	switch len(params) {
	case 0:
		return "no parameters"
	case 1:
		return "only " + params[0]
	default:
		return "only " + strings.Join(params, ", ")
	}
}

// normal is a route's name with one blank between method and path, and the method in capitals.
func normal(name string) (string, error) {
	fields := strings.Fields(name)
	if len(fields) != 2 || !strings.Contains(fields[1], "/") {
		return "", errors.New("its name is no route; write method and path, such as \"POST /orders/…\"")
	}
	return strings.ToUpper(fields[0]) + " " + fields[1], nil
}

// A Guard holds the middlewares of Rules. [FromRules] makes one; it is safe for concurrent use.
type Guard struct {
	made map[string]func(http.Handler) http.Handler

	mu   sync.Mutex
	used map[string]bool
}

// FromRules compiles rules whose paths have their parameters in braces, as those of ServeMux and chi. opts hold for all of
// them.
func FromRules(l locker.Locker, rules Rules, opts ...Option) (*Guard, error) {
	made, err := rules.Compile(l, braced, opts...)
	if err != nil {
		return nil, fmt.Errorf("httplock: %w", err)
	}
	return &Guard{made: made, used: make(map[string]bool)}, nil
}

// Wrap returns h under the lock of route's Rule, or h itself if there is none:
//
//	mux.Handle("POST /orders/{id}", guard.Wrap("POST /orders/{id}", pay))
func (g *Guard) Wrap(route string, h http.Handler) http.Handler {
	route, err := normal(route)
	if err != nil {
		return h // a pattern without a method has no Rule
	}
	middleware, ok := g.made[route]
	if !ok {
		return h
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used[route] = true
	return middleware(h)
}

// Validate returns an error that names the Rules which guard no route: misspelled ones, or of a route that is gone. Call it
// when all routes are registered.
func (g *Guard) Validate() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, route := range slices.Sorted(maps.Keys(g.made)) {
		if !g.used[route] {
			errs = append(errs, fmt.Errorf("httplock: rule %q: no handler was wrapped for this route; correct its name, or wrap the route's handler", route))
		}
	}
	return errors.Join(errs...)
}

var inBraces = regexp.MustCompile(`\{(\w+)[^}]*\}`)

// braced lists the parameters of "/orders/{id}/files/{path...}", or of chi's "/orders/{id:[0-9]+}".
func braced(path string) (names []string) {
	for _, m := range inBraces.FindAllStringSubmatch(path, -1) {
		names = append(names, m[1])
	}
	return names
}

// declares says whether a pattern has a parameter of that name.
func declares(pattern, name string) bool { return slices.Contains(braced(pattern), name) }
