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
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Rules define which routes are guarded, and how. So one table shows all locks of a service. A name
// in this map is the method and the path of a route, as the router spells it, such as "POST
// /orders/{id}/pay".
type Rules map[string]Rule

// A Rule guards a route. Most fields have the meaning of a field of locker.Rule, or of an option
// such as [WithTTL]. An empty field has the value of the options that come with the Rules, or the
// default of the option.
type Rule struct {
	_ struct{} // keyed literals only

	Key      Key           // "order:{param.id|int}"; a Rule has Key, Keys, Idempotency or NoLock
	Keys     []Key         // instead of Key: several keys that are locked together; see WithKeys
	Name     string        // see WithName
	Mode     locker.Mode   // Exclusive by default
	TTL      time.Duration // see WithTTL
	Wait     time.Duration // see WithWait
	Limit    int           // how many units may be held at once, with a Locker of locker.NewSemaphore; see locker.Rule
	Weight   int           // how many units a request takes; see locker.Rule
	KeepFor  time.Duration // see locker.Rule
	EndAfter time.Duration // see locker.Rule
	OnceFor  time.Duration // see locker.Rule; the key then says how ids are spelled, see FromRules
	FailOpen bool          // see WithFailOpen

	// Idempotency is the scope of the route's idempotency keys, such as "{claim.sub}". It needs
	// WithStore. The stored response is looked up before the lock of Key is taken. See
	// [NewIdempotency].
	Idempotency Key
	// Lifetime is how long a response is stored; see WithLifetime.
	Lifetime time.Duration

	MaxBody      int64 // see WithMaxBody
	StreamedBody bool  // see WithStreamedBody

	// NoLock declares that the route needs no lock, so Validate does not report it. Unguarded does
	// not list the route.
	NoLock bool
}

// options returns the Rule as options.
func (r Rule) options() []Option {
	opts := r.common()
	add := func(is bool, o Option) {
		if is {
			opts = append(opts, o)
		}
	}
	add(len(r.Keys) > 1, WithKeys(r.Keys[min(1, len(r.Keys)):]...))
	add(r.Name != "", WithName(r.Name))
	add(r.Limit != 0 || r.Weight != 0, withFixed(func(rule *locker.Rule) {
		rule.Limit, rule.Weight = cmp.Or(r.Limit, rule.Limit), cmp.Or(r.Weight, rule.Weight)
	}))
	add(r.Mode != 0 || r.KeepFor != 0 || r.EndAfter != 0 || r.OnceFor != 0, withFixed(func(rule *locker.Rule) {
		rule.Mode = max(rule.Mode, r.Mode)
		rule.KeepFor, rule.EndAfter, rule.OnceFor = cmp.Or(r.KeepFor, rule.KeepFor), cmp.Or(r.EndAfter, rule.EndAfter), cmp.Or(r.OnceFor, rule.OnceFor)
	}))
	return opts
}

// common returns the options that apply to the lock and to idempotency.
func (r Rule) common() []Option {
	var opts []Option
	add := func(is bool, o Option) {
		if is {
			opts = append(opts, o)
		}
	}
	add(r.TTL != 0, WithTTL(r.TTL))
	add(r.Wait != 0, WithWait(r.Wait))
	add(r.FailOpen, WithFailOpen())
	add(r.Lifetime != 0, WithLifetime(r.Lifetime))
	add(r.MaxBody != 0, WithMaxBody(r.MaxBody))
	add(r.StreamedBody, WithStreamedBody())
	return opts
}

// keys returns the templates in Key or Keys. A Rule that has only Idempotency or NoLock has no
// keys.
func (r Rule) keys() []Key {
	if r.Key != "" {
		return []Key{r.Key}
	}
	return r.Keys
}

// compile makes the middleware of each Rule. opts apply to all Rules. The error has a line for each
// wrong Rule, with its name.
func (rs Rules) compile(l locker.Locker, opts []Option) (map[string]func(http.Handler) http.Handler, error) {
	if len(rs) == 0 {
		return nil, errors.New("there are no rules, so no route would be guarded; is the file empty, or is it the wrong file?")
	}
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
			bad(fmt.Errorf("the route is the same as in rule %q; keep one of the two", twin))
			continue
		}
		spelled[route] = name
		middleware, err := rs[name].compile(l, route, opts)
		if err != nil {
			bad(err)
			continue
		}
		made[route] = middleware
	}
	return made, errors.Join(errs...)
}

func (r Rule) compile(l locker.Locker, route string, opts []Option) (func(http.Handler) http.Handler, error) {
	keys := r.keys()
	switch {
	case r.NoLock && (len(keys) > 0 || r.Idempotency != ""):
		return nil, errors.New("the rule has NoLock together with a Key or Idempotency; remove one")
	case r.NoLock:
		return func(next http.Handler) http.Handler { return next }, nil
	case r.Key != "" && len(r.Keys) > 0:
		return nil, errors.New("the rule has Key and Keys; write all keys into Keys")
	case len(keys) == 0 && r.Idempotency == "":
		return nil, errors.New("the rule has no Key; name what the route changes, such as \"order:{param.id|int}\"")
	case len(keys) == 0 && len(r.options()) > len(r.common()):
		return nil, errors.New("the rule has no Key, so its Name, Mode, Limit, Weight, KeepFor, EndAfter or OnceFor would do nothing; give a Key, or leave them out")
	case r.Mode > locker.Shared:
		return nil, fmt.Errorf("its Mode %d is neither Exclusive nor Shared", r.Mode)
	}
	for field, value := range map[string]time.Duration{"KeepFor": r.KeepFor, "EndAfter": r.EndAfter, "OnceFor": r.OnceFor} {
		if value != 0 && value < time.Millisecond {
			return nil, fmt.Errorf("its %s is %v; give at least 1ms, or 0 to leave it out", field, value)
		}
	}
	var around []func(http.Handler) http.Handler
	inTransaction := false
	if r.Idempotency != "" {
		once, err := r.idempotent(l, route, opts)
		switch inTransaction = err == nil && once.commits(); {
		case err != nil:
			return nil, err
		case inTransaction && r.OnceFor != 0:
			return nil, errors.New("the rule has OnceFor and Idempotency with an idempotency.Transactor, whose lock is outside: " +
				"a repeated request would get already-done in place of its answer; leave OnceFor out, the database has the answer")
		}
		around = append(around, once.wrap)
	}
	if len(keys) > 0 {
		m, err := makeMiddleware(l, keys[0], append(slices.Clone(opts), append(r.options(), withoutStore)...))
		if err == nil {
			err = possible(m, route)
		}
		if err != nil {
			return nil, err
		}
		if around = append(around, m.wrap); inTransaction {
			slices.Reverse(around) // the lock must last until the transaction is committed
		}
	}
	return func(next http.Handler) http.Handler {
		for _, middleware := range slices.Backward(around) {
			next = middleware(next)
		}
		return next
	}, nil
}

// withoutStore is an option of the lock of a Rule. The Store is for the Rule's Idempotency.
func withoutStore(c *config) { c.store = nil }

// idempotent makes the middleware for idempotency. It runs outside of the lock's middleware, so that a
// replay needs no lock, but inside if its Store is a Transactor.
func (r Rule) idempotent(l locker.Locker, route string, opts []Option) (*middleware, error) {
	opts = append(slices.Clone(opts), r.common()...)
	cfg, err := newConfig(opts)
	switch {
	case err != nil:
		return nil, err
	case cfg.store == nil:
		return nil, errors.New("the rule has Idempotency, and there is no Store for the responses; give WithStore")
	}
	m, err := makeIdempotency(l, cfg.store, r.Idempotency, opts)
	if err != nil {
		return nil, fmt.Errorf("its Idempotency: %w", err)
	}
	return m, possible(m, route)
}

// possible returns an error for a part of a key that no request of the route can have.
func possible(m *middleware, route string) error {
	method, path, _ := strings.Cut(route, " ")
	declared := m.reader.Params(path)
	if m.pathValue != nil {
		declared = append(declared, afterColons(path)...)
	}
	for _, part := range m.template.Parts() {
		switch {
		case part.Source == "param" && !slices.Contains(declared, part.Name):
			return fmt.Errorf("its key %q has {param.%s}, and the path has %s%s", part.Key, part.Name, listed(declared), m.respelled(path, part.Name))
		case part.Source == "body" && (safe(method) || method == http.MethodConnect):
			return fmt.Errorf("its key %q reads the body, and a %s request has no body; take {param.NAME}, {query.NAME} or {header.NAME}", part.Key, method)
		}
	}
	return nil
}

var parameter = regexp.MustCompile(`/[:{](\w+)}?`)

// respelled says how the path would have the parameter, if another framework writes it as path does.
func (m *middleware) respelled(path, name string) string {
	for _, as := range []string{"/:$1", "/{$1}"} {
		if own := parameter.ReplaceAllString(path, as); slices.Contains(m.reader.Params(own), name) {
			return fmt.Sprintf("; write the path as %s", own)
		}
	}
	return ""
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

// normal returns a route's name with one blank between method and path, and with the method in
// capitals.
func normal(name string) (string, error) {
	fields := strings.Fields(name)
	if len(fields) != 2 || !strings.Contains(fields[1], "/") {
		return "", errors.New("the name is not a route; write method and path, such as \"POST /orders/…\"")
	}
	return strings.ToUpper(fields[0]) + " " + fields[1], nil
}
