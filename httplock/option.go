package httplock

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// An Option sets up the middleware that [New] returns.
type Option func(*config)

// config has the values of the options. newConfig sets their defaults.
type config struct {
	wait     time.Duration
	ttl      time.Duration
	name     string
	failOpen bool

	keys     []Key // the keys after the first key
	streamed bool

	store idempotency.Store
	keep  time.Duration

	reader    framework.Reader
	pathValue func(*http.Request) map[string]string // nil: the reader's
	maxBody   int64
	secret    []byte
	parts     map[string]func(*http.Request) (string, error)
	claims    func(*http.Request) map[string]any

	render    func(http.ResponseWriter, *http.Request, *Problem)
	observe   []func(*http.Request, *Problem)
	succeeded func(r *http.Request, out response) bool

	filters []func(*http.Request) bool
	fixed   []func(*locker.Rule) // changes of a Rule that are the same for every request
	adjust  []func(*http.Request, *locker.Rule)
	errs    []error // the errors of refused options
}

func newConfig(opts []Option) (config, error) {
	c := config{
		wait: 5 * time.Second, maxBody: 1 << 20, keep: 24 * time.Hour,
		parts: make(map[string]func(*http.Request) (string, error)), reader: ofNetHTTP,
		render: writeProblem, succeeded: func(_ *http.Request, out response) bool {
			return out.Written() && out.Status() < http.StatusBadRequest
		},
	}
	for _, o := range opts {
		o(&c)
	}
	return c, c.validate()
}

func (c *config) validate() error {
	switch {
	case len(c.errs) > 0:
		return c.errs[0]
	case c.wait == 0:
		return errors.New("WithWait(0): a wait must have an end, because not every client that has left is noticed; give locker.NoWait to refuse at once")
	case c.wait < 0 && c.wait != locker.NoWait:
		return fmt.Errorf("WithWait(%v): give a positive time, or locker.NoWait to refuse at once", c.wait)
	case c.wait > 0 && c.wait < time.Millisecond:
		return fmt.Errorf("WithWait(%v): give at least 1ms, or locker.NoWait to refuse at once", c.wait)
	case c.ttl != 0 && c.ttl < shortestTTL:
		return fmt.Errorf("WithTTL(%v): such a short lease ends before its holder learns of it; give at least %v, or leave the option out for the Locker's default", c.ttl, shortestTTL)
	case c.maxBody < 1:
		return fmt.Errorf("WithMaxBody(%d): give the number of bytes that may be read, at least 1", c.maxBody)
	case c.keep < time.Millisecond:
		return fmt.Errorf("WithLifetime(%v): give the time for which a response is remembered, at least 1ms", c.keep)
	}
	return nil
}

// shortestTTL is the smallest TTL that is accepted. It leaves time for a round trip to the lock
// server and a renewal.
const shortestTTL = 20 * time.Millisecond

// refuse records an error if bad is true, and returns bad.
func (c *config) refuse(bad bool, format string, args ...any) bool {
	if bad {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
	return bad
}

// WithWait sets how long a request waits for its lock. locker.NoWait waits for no holder. Without a
// Wait, a call waits as long as its caller's context allows; an adapter that answers a client
// limits the wait to 5 s; a worker does not wait but puts the task off.
func WithWait(d time.Duration) Option { return func(c *config) { c.wait = d } }

// WithTTL sets how long the server keeps the lock when this process dies. Default: the TTL of the
// Locker, 30 s.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithName sets the name of the lock in traces and metrics. Default: the key's text up to the
// first ':'. If there is no ':', or a part of the request comes before it, the name is "lock".
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithFailOpen runs requests without a lock while the lock server is unavailable. Then two requests
// can run at the same time, and no request is idempotent: choose WithFailOpen if an outage is worse
// than work that runs twice. WithObserve receives each request that runs without a lock. Default:
// without the lock server, requests are answered 503.
//
// Only the requests that are under way when the outage begins wait for the lock server; one in a
// queue waits for about a second. Later requests run at once, while a probe in the background asks
// once a second whether the server answers again. Then one request asks for all others, and a grant
// or a busy lock ends the outage.
func WithFailOpen() Option { return func(c *config) { c.failOpen = true } }

// WithMaxBody sets how many bytes of a body may be read for a key with {body.NAME}, or for the
// fingerprint. A request with a longer body is answered 413. Default: 1 MiB.
func WithMaxBody(most int64) Option { return func(c *config) { c.maxBody = most } }

// WithSecret sets the secret for parts like {header.Authorization|hmac}: at least 16 random bytes,
// the same in all processes. Default: no secret, and these parts are refused.
func WithSecret(secret []byte) Option { return func(c *config) { c.secret = secret } }

// WithPart makes {name} a part of keys. The function value reads the part from the request. If
// value returns "", the request lacks the part and is answered 400. If value returns an error, the
// request is answered 500, and the text of the error stays in the process. A part named "ip" replaces
// {ip}, behind proxies that name their client in a header.
func WithPart(name string, value func(r *http.Request) (string, error)) Option {
	return func(c *config) {
		c.parts = maps.Clone(c.parts)
		c.parts[name] = value
	}
}

// WithPathValues sets how {param.NAME} is read, for routers that do not set the path values of
// net/http: mux.Vars of gorilla/mux, which Kratos uses too, and pathvar.Vars of go-zero. A
// parameter that the function values does not return is missing in the route, and the request is
// answered 500, lock-misconfigured. With this option, the paths of [FromRules] may also have their
// parameters after colons, as go-zero's have. Default: http.Request.PathValue.
func WithPathValues(values func(r *http.Request) map[string]string) Option {
	return func(c *config) {
		if !c.refuse(values == nil, "WithPathValues: the function is nil; give the one of your router, such as mux.Vars") {
			c.pathValue = values
		}
	}
}

// WithClaims makes {claim.NAME} a part of keys. The function claims returns the claims that
// authentication has found. The part is the value of NAME in this map. Default: a key with
// {claim.NAME} is refused.
func WithClaims(claims func(r *http.Request) map[string]any) Option {
	return func(c *config) { c.claims = claims }
}

// WithFilter guards only requests for which guarded returns true. All other requests run without a
// lock. With several WithFilters, all their functions must return true. Default: every request is
// guarded.
func WithFilter(guarded func(r *http.Request) bool) Option {
	return func(c *config) { c.filters = append(c.filters, guarded) }
}

// WithErrorHandler makes h write the replies. When h is called, the Retry-After header is already
// set. h may reply in any form, and writes the status. p marshals to an object of problem+json. If
// h writes nothing, p.Status is written. Default: problem+json.
func WithErrorHandler(h func(w http.ResponseWriter, r *http.Request, p *Problem)) Option {
	return func(c *config) { c.render = h }
}

// WithObserve calls see with each Problem before its reply is written, even if no reply can be
// written any more. The function see is for logs. [Problem.Failure] reports whether an operator
// should know of the Problem.
func WithObserve(see func(r *http.Request, p *Problem)) Option {
	return func(c *config) { c.observe = append(c.observe, see) }
}

// WithSuccess says which requests have succeeded, so that Rule.OnceFor remembers their work as
// done. Default: requests whose handler has written a status below 400 have succeeded. A handler
// that writes nothing has not succeeded: let it write a status.
//
// Once a status was written, it decides. If a later write fails, because the client has left, the
// work still counts as done. So commit the work before you write the status, and do not roll it
// back because of the error of a write.
func WithSuccess(succeeded func(r *http.Request, status int) bool) Option {
	return func(c *config) {
		c.succeeded = func(r *http.Request, out response) bool { return succeeded(r, out.Status()) }
	}
}

// WithRule lets adjust change the Rule of a request: its Mode, OnceFor or EndAfter. If adjust
// leaves Wait or Name empty, the middleware's value is used. With several WithRules, their
// functions run in order. A Key that adjust sets is used as it is: values in it are not encoded as
// in a template. Make it with [key.Of] if a client can choose a part of it.
//
// If adjust sets OnceFor, let the key say how ids are spelled, as in "order:{param.id|int}": only
// [FromRules] can check this. Otherwise each spelling of an id does the work once more.
func WithRule(adjust func(r *http.Request, rule *locker.Rule)) Option {
	return func(c *config) { c.adjust = append(c.adjust, adjust) }
}

// WithFramework is for ginlock and the other adapters of this project: they read requests with the
// methods of their framework.
func WithFramework(r framework.Reader) Option {
	return func(c *config) {
		if !c.refuse(r.Sources == nil, "WithFramework: %s has no Sources", r.Name) {
			c.reader = r
		}
	}
}

// ofNetHTTP is the default of WithFramework.
var ofNetHTTP = framework.Reader{
	Name: "httplock", Sources: netHTTP{}, Params: braced,
	Unused: "no handler was wrapped for this route; correct its name, or wrap the route's handler",
}

// grammar returns the parts of which keys can be made.
func (c *config) grammar() template.Grammar[*http.Request] {
	return template.Grammar[*http.Request]{Sources: c.sources(), Secret: c.secret}
}

// withFixed does the same as WithRule, for a function adjust that does not depend on the request.
// So the result is checked when the program starts.
func withFixed(adjust func(rule *locker.Rule)) Option {
	return func(c *config) { c.fixed = append(c.fixed, adjust) }
}

// WithKeys locks more keys together with the first key. Either all keys are locked or none, in an
// order that excludes deadlocks (see locker.RunAll). A single key such as
// "stock:{body.items.*.sku}" can make several keys, too. A request can lock at most 100 keys.
func WithKeys(keys ...Key) Option {
	return func(c *config) { c.keys = append(slices.Clip(c.keys), keys...) }
}

// WithStreamedBody leaves the request's body unread until the handler reads it. Default: up to
// [WithMaxBody] of the body is read before the lock is taken, so that a slow client does not hold
// the lock. With this option, http.Server.ReadTimeout must bound how long a client may take. Keys
// with {body.NAME} and [NewIdempotency] read the body in any case.
func WithStreamedBody() Option { return func(c *config) { c.streamed = true } }

// WithStore sets where [FromRules] stores the responses of Rules with Idempotency. It makes [New]
// store responses under its key, as [NewIdempotency] does, for requests that are not identified by
// the header Idempotency-Key but, for example, by "payment:{body.request_id}". Then the responses
// to every method are stored.
func WithStore(store idempotency.Store) Option {
	return func(c *config) { c.store = store }
}

// WithLifetime sets for how long a response is stored. Default: 24 h.
func WithLifetime(d time.Duration) Option { return func(c *config) { c.keep = d } }
