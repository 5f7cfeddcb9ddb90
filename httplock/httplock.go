package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/key"
)

// Key is the text of a key's template, such as "order:{param.id|int}". The package's comment lists
// the parts.
type Key = key.Key

// New returns a middleware that runs a handler under the lock that k names. It works with
// net/http, chi, and every other router that wraps an http.Handler. In the line of a route, call
// [MustNew]:
//
//	mux.Handle("POST /orders/{id}/ship", httplock.MustNew(l, "order:{param.id|int}")(ship))
//
// A request waits for at most 5 s ([WithWait]). Then it is refused: 409 with Retry-After, and 503
// while Redis does not answer. For a request with several keys, see [WithKeys]. New returns an
// error, with advice in the text, if l is nil, or if k or an option is invalid.
func New(l locker.Locker, k Key, opts ...Option) (func(http.Handler) http.Handler, error) {
	m, err := makeMiddleware(l, k, opts)
	if err != nil {
		return nil, signed(opts, err)
	}
	return m.wrap, nil
}

// MustNew is [New] for the line of a route, which has no place for an error: MustNew panics with
// the text of the error. Such a mistake is a mistake of the program, so the program ends when it
// starts, as with a pattern that ServeMux cannot register.
func MustNew(l locker.Locker, k Key, opts ...Option) func(http.Handler) http.Handler {
	return framework.Must(New(l, k, opts...))
}

// signed returns err with the name of the adapter before it.
func signed(opts []Option, err error) error {
	cfg, _ := newConfig(opts) // err says what is wrong with opts
	return fmt.Errorf("%s: %w", cfg.reader.Name, err)
}

func makeMiddleware(l locker.Locker, k Key, opts []Option) (*middleware, error) {
	if l == nil {
		return nil, errors.New("the Locker is nil; make one with locker.New, and check its error")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	template, err := cfg.grammar().Compile(append([]Key{k}, cfg.keys...)...)
	if err != nil {
		return nil, err
	}
	if cfg.store != nil && template.Several() {
		return nil, errors.New("a Store keeps one response for one key, and this middleware has several keys; give the Store to a separate middleware with one key")
	}
	if err := cfg.check(l, template); err != nil {
		return nil, err
	}
	m := &middleware{config: cfg, locker: l, template: template}
	m.events, _ = l.(requestObserver)
	if m.failOpen {
		m.breaker = breaker.New(l)
	}
	m.keeper = idempotency.Keeper{Locker: m.locker, Store: cfg.store, Lifetime: cfg.keep}
	return m, nil
}

// check returns an error if the Locker l can never grant a Rule of these options, or if the Rule
// has OnceFor and a client could repeat the work by another spelling of its key.
func (c *config) check(l locker.Locker, keys *template.Template[*http.Request]) error {
	rule := locker.Rule{TTL: c.ttl, Wait: c.wait}
	for _, adjust := range c.fixed {
		adjust(&rule)
	}
	if rule.OnceFor > 0 {
		if err := keys.CheckSpelling(chosen); err != nil {
			return err
		}
	}
	return locker.Check(l, rule)
}

// middleware has the checked and compiled arguments of a constructor.
type middleware struct {
	config
	locker   locker.Locker
	template *template.Template[*http.Request]
	keeper   idempotency.Keeper // used only with a Store
	events   requestObserver    // nil: requests are not counted
	breaker  *breaker.Breaker   // nil without WithFailOpen
}

func (m *middleware) wrap(next http.Handler) http.Handler {
	if reflect.TypeOf(next) == timeoutHandler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.refuse(watch(w), r, errTimeoutInside) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

var (
	timeoutHandler   = reflect.TypeOf(http.TimeoutHandler(nil, 0, ""))
	errTimeoutInside = fmt.Errorf("%w: http.TimeoutHandler inside of the lock replies while its handler still works, "+
		"so the lock would end before the work; put http.TimeoutHandler outside of the lock", locker.ErrInvalidRule)
)

// serve handles one request. The request ends in one of these ways:
//
//	the handler ran, the lock was held    with the handler's reply
//	the handler ran, the lock was lost    with 503, unless the handler has begun a reply
//	the handler did not run               with the Problem that is the reason
//	the handler panicked                  the panic continues after the release
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !m.applies(r) {
		next.ServeHTTP(w, r)
		return
	}
	out := watch(w)
	if m.reader.Routed != nil && !m.reader.Routed(r) {
		m.refuseUnrouted(r)
		return
	}
	if !m.streamed {
		if err := prefetch(r, m.maxBody); err != nil {
			m.refuse(out, r, err)
			return
		}
	}
	if m.store != nil {
		m.once(out, r, next)
		return
	}
	if outside, ok := r.Context().Value(insideKey{}).(*inside); ok && outside.commits {
		m.refuse(out, r, errInsideTransaction)
		return
	}
	first, more, err := m.rules(r.Context(), r)
	if err != nil {
		m.refuse(out, r, err)
		return
	}
	if m.breaker.Open() {
		m.unguarded(out, r, next, breaker.ErrOutage)
		return
	}
	began, ran, before := time.Now(), false, describe(out.Header())
	var work done
	err = m.breaker.Try(r.Context(), first.Key, func(ctx context.Context, granted func()) error {
		underLock := func(ctx context.Context) error {
			ran = true
			granted()
			waited := time.Since(began)
			m.event(r, eventAcquired, waited)
			return m.handle(ctx, waited, out, r, next, &work)
		}
		if more == nil {
			return locker.Run(ctx, m.locker, first, underLock)
		}
		return locker.RunAll(ctx, m.locker, append(more, first), underLock)
	})
	switch {
	case err == nil || err == errFailed:
	case ran:
		m.spoiled(out, r, before, err, work.succeeded)
	default:
		m.unlocked(out, r, next, err)
	}
	if work.aborted {
		panic(http.ErrAbortHandler)
	}
}

// unlocked handles a request that did not get its lock.
func (m *middleware) unlocked(out response, r *http.Request, next http.Handler, err error) {
	if m.breaker.Permits(r.Context(), err) {
		m.unguarded(out, r, next, err)
		return
	}
	m.refuse(out, r, err)
}

// unguarded runs a request without a lock, because of WithFailOpen.
func (m *middleware) unguarded(out response, r *http.Request, next http.Handler, err error) {
	why := unguarded
	if errors.Is(err, idempotency.ErrStore) {
		why = unguardedByStore
	}
	m.show(r, why.problem(err))
	m.event(r, eventUnguarded, 0)
	next.ServeHTTP(out, r)
}

// refuseUnrouted refuses a request without a route. No handler runs, because it would run without its
// lock, and the framework answers. So a 404 stays a 404.
func (m *middleware) refuseUnrouted(r *http.Request) {
	m.report(r, reply{status: http.StatusNotFound, code: CodeNoRoute, title: "There is no such route"}.problem(errNoRoute))
}

var errNoRoute = errors.New("the request matches no route, so the handlers behind the lock did not run")

func (m *middleware) applies(r *http.Request) bool {
	for _, applies := range m.filters {
		if !applies(r) {
			return false
		}
	}
	return true
}

// rules makes the Rules of a request: one Rule for each of its keys.
func (m *middleware) rules(ctx context.Context, r *http.Request) (first locker.Rule, more []locker.Rule, err error) {
	if !m.template.Several() {
		k, err := m.template.Key(ctx, r)
		if err != nil {
			return first, nil, err
		}
		return m.rule(r, k), nil, nil
	}
	keys, err := m.template.Keys(ctx, r)
	if err != nil {
		return first, nil, err
	}
	for _, k := range keys[1:] {
		more = append(more, m.rule(r, k))
	}
	return m.rule(r, keys[0]), more, nil
}

func (m *middleware) rule(r *http.Request, k string) locker.Rule {
	name := cmp.Or(m.name, m.template.Name())
	rule := locker.Rule{Key: k, Name: name, TTL: m.ttl, Wait: m.wait}
	for _, adjust := range m.fixed {
		adjust(&rule)
	}
	for _, adjust := range m.adjust {
		adjust(r, &rule)
	}
	// Without a name, the Locker would use the beginning of the key as the name. The client may
	// have chosen this beginning. Without a time limit, the wait of a client that has left may have
	// no end.
	rule.Name, rule.Wait = cmp.Or(rule.Name, name), cmp.Or(rule.Wait, m.wait)
	return rule
}

// safe reports whether a method is safe: it changes nothing (RFC 9110, section 9.2.1).
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// errFailed makes Run release the lease without a done mark.
var errFailed = errors.New("the handler failed")

// handle runs the handler under the lock, and records in work what it has done.
func (m *middleware) handle(
	ctx context.Context, waited time.Duration, out response, r *http.Request, next http.Handler, work *done,
) error {
	showWait(waited, out.Header())
	work.aborted = m.call(ctx, out, r, next)
	if work.succeeded = m.succeeded(r, out); !work.succeeded {
		return errFailed
	}
	return nil
}

// done is what the handler under a lock has done.
type done struct {
	succeeded bool
	aborted   bool // by http.ErrAbortHandler, after the client has left
}

// call runs the handler with the response w and a request whose context ends with the lock. A
// handler whose client leaves in the middle of the response may end by http.ErrAbortHandler, as
// httputil.ReverseProxy does. The status decides whether its work is done, so call ends this panic,
// and the caller panics again when it has recorded the work.
func (m *middleware) call(ctx context.Context, w response, r *http.Request, next http.Handler) (aborted bool) {
	defer func() {
		if r.Context().Err() == nil || !reached(w) {
			return
		}
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		} else {
			aborted = p != nil
		}
	}()
	m.next(ctx, w, r, next)
	return false
}

// reached reports whether a part of the response may have reached the client. Of a response that is
// held back, nothing has: such a part must not be stored as the whole.
func reached(w response) bool {
	if h, ok := w.(*held); ok {
		return h.over
	}
	return begun(w)
}

func (m *middleware) next(ctx context.Context, w http.ResponseWriter, r *http.Request, next http.Handler) {
	inner := r.WithContext(ctx)
	if m.store != nil { // a middleware inside must not compress a response that other clients get, too
		inner.Header = maps.Clone(r.Header)
		inner.Header.Del("Accept-Encoding")
	}
	defer carry(r, inner)
	next.ServeHTTP(w, inner)
}

// carry copies the parsed forms and the route to the request of the outer middlewares. There the
// server finds the files of a multipart form, which it removes, and access logs find the route.
func carry(to, from *http.Request) {
	framework.CarryForms(to, from)
	if to.Pattern == from.Pattern {
		return
	}
	to.Pattern = from.Pattern
	for _, name := range braced(from.Pattern) {
		to.SetPathValue(name, from.PathValue(name))
	}
}

// FromContext returns the lease under which r is handled: the innermost lease that is not the lease
// of [NewIdempotency]. If a request has locked several keys, FromContext returns the lease whose
// key sorts last. locker.LeasesFromContext returns all leases. Without another lock, FromContext
// returns the lease of NewIdempotency.
func FromContext(r *http.Request) (*locker.Lease, bool) {
	attempt, ok := idempotency.FromContext(r.Context())
	if !ok {
		return locker.FromContext(r.Context())
	}
	leases := locker.LeasesFromContext(r.Context())
	if i := slices.IndexFunc(leases, func(l *locker.Lease) bool { return l != attempt.Lease() }); i >= 0 {
		return leases[i], true
	}
	return attempt.Lease(), true
}

// requestObserver is a Locker whose Observer counts requests. Every Engine is a requestObserver.
type requestObserver interface {
	ObserveRequest(ctx context.Context, e locker.RequestEvent)
}

// These are the results of requests without a Problem.
const (
	eventAcquired  = "acquired"
	eventReplayed  = "replayed"
	eventUnguarded = "unguarded"
)

// event reports the result of r's lock to the Locker's Observer.
func (m *middleware) event(r *http.Request, result string, waited time.Duration) {
	if m.events != nil {
		m.events.ObserveRequest(r.Context(), locker.RequestEvent{
			Name: cmp.Or(m.name, m.template.Name()), Result: result, Waited: waited,
		})
	}
}
