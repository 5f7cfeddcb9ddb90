package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
	"github.com/latchkit/latchkit/locker/key"
)

// Key is the text of a key's template, such as "order:{param.id}". The package's comment has the grammar.
type Key = key.Key

// New returns a middleware that runs a handler under the lock that k names. It fits net/http, chi, and whatever else wraps
// an http.Handler.
//
// It panics, with a text that says what to do, when l is nil or k or an option makes no sense: like a pattern that ServeMux
// cannot register, that is a mistake in the program, found when it starts. Keys that are read from configuration go to
// [Make].
func New(l locker.Locker, k Key, opts ...Option) func(http.Handler) http.Handler {
	middleware, err := Make(l, k, opts...)
	if err != nil {
		panic("httplock: New: " + err.Error())
	}
	return middleware
}

// Make is [New] for keys and options that are no part of the program's text: it returns what is wrong.
func Make(l locker.Locker, k Key, opts ...Option) (func(http.Handler) http.Handler, error) {
	if isNil(l) {
		return nil, errors.New("the Locker is nil; make one with locker.NewSingle, and check its error")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	template, err := cfg.grammar().Compile(k)
	if err != nil {
		return nil, err
	}
	m := &middleware{config: cfg, template: template}
	if cfg.delegated {
		if m.receiver, err = delegate.NewReceiver(l, cfg.delegation...); err != nil {
			return nil, fmt.Errorf("WithDelegation: %w", err)
		}
		l = m.receiver
	}
	m.guard = locker.Guard[*http.Request]{Locker: l, Rule: m.rule}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

// isNil finds a nil Locker also inside the interface: what a constructor returned with an error nobody looked at.
func isNil(l locker.Locker) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// middleware is what Make makes of its arguments.
type middleware struct {
	config
	template *key.Template[*http.Request]
	receiver *delegate.Receiver // nil without WithDelegation
	guard    locker.Guard[*http.Request]
}

// serve handles one request. How it ends:
//
//	the handler ran, the lock was held    the handler's reply
//	the handler ran, the lock was lost    503, unless the handler has written already
//	the handler did not run               the Problem that says why
//	the handler panicked                  the panic goes on, after the release
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	came := r
	r, err := m.receive(r)
	if r != came {
		defer carry(came, r)
	}
	if !m.applies(r) {
		next.ServeHTTP(w, r)
		return
	}
	out := watch(w)
	if err != nil {
		m.refuse(out, r, err)
		return
	}
	ran := false
	err = m.guard.Run(r.Context(), r, func(ctx context.Context) error {
		ran = true
		return m.handle(ctx, out, r, next)
	})
	switch {
	case err == nil || err == errFailed:
	case ran:
		m.spoiled(out, r, err)
	case m.failOpen && errors.Is(err, locker.ErrUnavailable) && r.Context().Err() == nil:
		m.tell(r, unavailable.problem(err))
		next.ServeHTTP(w, r)
	default:
		m.refuse(out, r, err)
	}
}

// receive takes a delegation out of the request's header, so that no handler sends it on, and keeps it for the Locker if it is
// taken.
func (m *middleware) receive(r *http.Request) (*http.Request, error) {
	if m.receiver == nil {
		return delegate.Strip(r), nil
	}
	return m.receiver.Request(r)
}

func (m *middleware) applies(r *http.Request) bool {
	for _, applies := range m.filters {
		if !applies(r) {
			return false
		}
	}
	return true
}

// rule derives what to guard from a request.
func (m *middleware) rule(ctx context.Context, r *http.Request) (locker.Rule, error) {
	k, err := m.template.Key(ctx, r)
	if err != nil {
		return locker.Rule{}, err
	}
	if m.store != nil { // now, so that nobody holds the lock while a slow body comes in
		if _, err := m.whole(r); err != nil {
			return locker.Rule{}, err
		}
	}
	name := cmp.Or(m.name, m.template.Name())
	rule := locker.Rule{Key: k, Name: name, TTL: m.ttl, Wait: m.wait}
	if m.modeByMethod && safe(r.Method) {
		rule.Mode = locker.Shared
	}
	for _, adjust := range m.adjust {
		adjust(r, &rule)
	}
	// Without a name the Locker would take the beginning of the key, which may be the client's; without a bound the wait of
	// a client that is gone may have no end.
	rule.Name, rule.Wait = cmp.Or(rule.Name, name), cmp.Or(rule.Wait, m.wait)
	if m.buffers() {
		rule.AtMost = cmp.Or(rule.AtMost, alone)
	}
	return rule, nil
}

// alone, as a bound that no request reaches, keeps a lease from being passed on inside the process: it goes back to the
// server, whose answer proves that it was ours until then.
const alone = 365 * 24 * time.Hour

// safe methods change nothing (RFC 9110, section 9.2.1).
func safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// errFailed tells Run that the handler did not succeed, so that Rule.Once does not remember the work as done.
var errFailed = errors.New("the handler failed")

// handle runs the handler with a request whose context ends with the lock.
func (m *middleware) handle(ctx context.Context, out response, r *http.Request, next http.Handler) error {
	if m.buffers() {
		return m.buffered(ctx, out, r, next)
	}
	m.call(ctx, out, r, next)
	if !m.succeeded(r, out.Status()) {
		return errFailed
	}
	return nil
}

func (m *middleware) call(ctx context.Context, w http.ResponseWriter, r *http.Request, next http.Handler) {
	inner := r.WithContext(ctx)
	defer carry(r, inner)
	next.ServeHTTP(w, inner)
}

// carry hands what the handler has read and parsed back to the request that the middlewares outside know: the server removes
// the files of a multipart form that it finds there.
func carry(to, from *http.Request) {
	to.Body, to.Form, to.PostForm, to.MultipartForm = from.Body, from.Form, from.PostForm, from.MultipartForm
}

// FromContext returns the lease under which r is handled.
func FromContext(r *http.Request) (*locker.Lease, bool) { return locker.FromContext(r.Context()) }
