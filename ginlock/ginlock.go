package ginlock

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// New returns a middleware that runs the handlers after it under the lock that k names. In the line
// of a route, call [MustNew]:
//
//	r.POST("/orders/:id/ship", ginlock.MustNew(l, "order:{param.id|int}"), ship)
//
// A request waits for at most 5 s ([httplock.WithWait]). Then it is refused: 409 with Retry-After,
// and 503 while Redis does not answer. New returns an error, with advice in the text, if l is nil,
// or if k or an option is invalid.
func New(l locker.Locker, k httplock.Key, opts ...httplock.Option) (gin.HandlerFunc, error) {
	lock, err := httplock.New(l, k, ofGin(opts)...)
	if err != nil {
		return nil, err
	}
	return handler(lock), nil
}

// MustNew is [New] for the line of a route, which has no place for an error: it panics with the
// text of the error.
func MustNew(l locker.Locker, k httplock.Key, opts ...httplock.Option) gin.HandlerFunc {
	return framework.Must(New(l, k, opts...))
}

// NewIdempotency returns a middleware that runs a request with an Idempotency-Key once, and answers
// repeated requests with the same response. scope identifies the owner of the keys, such as
// "{claim.sub}". See [httplock.NewIdempotency]. The error is as with [New].
//
// There is one difference. Gin answers 200 for a handler that writes nothing, as it does after
// c.Status(200). So such a handler has succeeded, and its response is stored: a repeated request
// does not run again.
func NewIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) (gin.HandlerFunc, error) {
	lock, err := httplock.NewIdempotency(l, store, scope, ofGin(opts)...)
	if err != nil {
		return nil, err
	}
	return handler(lock), nil
}

// MustIdempotency is [NewIdempotency] for the line of a route: it panics as [MustNew] does.
func MustIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) gin.HandlerFunc {
	return framework.Must(NewIdempotency(l, store, scope, opts...))
}

// handler returns the middleware of Gin for a middleware of httplock.
func handler(lock func(http.Handler) http.Handler) gin.HandlerFunc {
	locked := lock(framework.Resume)
	return func(c *gin.Context) { serve(c, locked) }
}

// FromContext returns the lease under which c's handler runs: the innermost lease that is not the
// lease of [NewIdempotency]; see [httplock.FromContext]. With [httplock.WithFailOpen], there is no
// lease while the lock server does not answer.
//
// Pass c.Request.Context() to the work of the handler. If a handler passes c itself, a loss ends
// the work only if the engine's ContextWithFallback is set.
func FromContext(c *gin.Context) (*locker.Lease, bool) {
	if c.Request == nil {
		return nil, false
	}
	return httplock.FromContext(c.Request)
}

// visit is one request on its way through httplock, which does not know Gin. As the request's
// context, it carries Gin's context. As the handler, it calls Gin's handlers.
type visit struct {
	framework.Carrier

	c       *gin.Context
	errors  int // the number of errors in c.Errors before the handlers ran
	problem *httplock.Problem
	ran     bool
	wrote   gin.ResponseWriter // the writer to which the handlers have written
}

// failed reports whether the handlers have added an error and no status. Once a status is written,
// it decides, because Gin itself adds the error of a write.
func (v *visit) failed() bool {
	return len(v.c.Errors) != v.errors && !v.wrote.Written() && v.wrote.Size() <= 0
}

func visitOf(r *http.Request) *visit { return framework.Carried[*visit](r) }

// contextOf returns Gin's context of a request that httplock knows.
func contextOf(r *http.Request) *gin.Context { return visitOf(r).c }

// serve handles a request with the handler locked, which runs framework.Resume under a lock.
func serve(c *gin.Context, locked http.Handler) {
	v := &visit{c: c, errors: len(c.Errors)}
	v.Carrier = framework.Carrier{Context: c.Request.Context(), Carried: v}
	r := c.Request.WithContext(v)
	// ShouldBindBodyWith has read the body, and has left nothing for other readers.
	if read, ok := c.Get(gin.BodyBytesKey); ok {
		if data, ok := read.([]byte); ok {
			r.Body = io.NopCloser(bytes.NewReader(data))
		}
	}
	defer framework.CarryForms(c.Request, r) // runs also if a handler panics
	locked.ServeHTTP(c.Writer, r)
	if !v.ran || v.problem != nil {
		c.Abort()
	}
}

// ServeHTTP runs Gin's handlers with a request whose context ends with the lock. Then it restores
// the request and the writer that the middlewares before this one know.
func (v *visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, request, out := v.c, v.c.Request, v.c.Writer
	v.ran = true
	c.Request = r
	defer func() {
		framework.CarryForms(r, c.Request)
		c.Request, c.Writer = request, out
	}()
	settle := func() {}
	v.wrote = out
	if w != http.ResponseWriter(out) {
		held := &writer{ResponseWriter: out, to: w, status: http.StatusOK, size: -1}
		v.wrote, settle = held, held.settle
	}
	c.Writer = v.wrote
	c.Next()
	if v.failed() {
		out.WriteHeader(v.wrote.Status()) // Gin only notes it, and an outer middleware answers
		return
	}
	settle()
}

// ofGin puts options for Gin before the options that the user gave.
func ofGin(opts []httplock.Option) []httplock.Option {
	return append([]httplock.Option{
		httplock.WithFramework(reader),
		httplock.WithObserve(observe),
		WithSuccess(func(c *gin.Context) bool { return c.Writer.Status() < http.StatusBadRequest }),
	}, opts...)
}

// reader reads requests with Gin's methods.
var reader = framework.Reader{
	Name:    "ginlock",
	Sources: sources{},
	Params:  params,
	Routed:  func(r *http.Request) bool { return contextOf(r).FullPath() != "" },
	Value: func(r *http.Request, name string) any {
		value, _ := contextOf(r).Get(name)
		return value
	},
}

// sources reads the parts of keys with Gin's methods. Gin's bindings of one source read the same
// values: they take the first of several values, too. Only the binding of a form mixes two sources.
type sources struct{}

var _ framework.Sources = sources{}

// Param returns c.Param.
func (sources) Param(r *http.Request, name string) (string, bool) {
	return contextOf(r).Params.Get(name)
}

// Query returns c.Query.
func (sources) Query(r *http.Request, name string) (string, error) {
	return contextOf(r).Query(name), nil
}

// Header returns c.GetHeader. net/http moves the header Host to c.Request.Host.
func (sources) Header(r *http.Request, name string) (string, error) {
	if strings.EqualFold(name, "Host") {
		return r.Host, nil
	}
	return contextOf(r).GetHeader(name), nil
}

// Cookie returns c.Cookie, which unescapes the value.
func (sources) Cookie(r *http.Request, name string) (string, error) {
	value, _ := contextOf(r).Cookie(name) // "" if there is no such cookie
	return value, nil
}

// IP returns c.ClientIP.
func (sources) IP(r *http.Request) string { return contextOf(r).ClientIP() }

// JSON reports whether c.ShouldBind parses the body as JSON. For other methods and types, it may
// even read the query.
func (sources) JSON(r *http.Request) bool {
	c := contextOf(r)
	return binding.Default(r.Method, c.ContentType()) == binding.Binding(binding.JSON)
}

// Body returns the body as it has arrived: Gin decodes no bodies.
func (sources) Body(r *http.Request, raw []byte, _ int64) ([]byte, error) {
	return framework.Unencoded(r, raw)
}

// WithClaims makes {claim.NAME} a part of keys. claims returns the claims that authentication has
// found.
func WithClaims(claims func(c *gin.Context) map[string]any) httplock.Option {
	return httplock.WithClaims(func(r *http.Request) map[string]any { return claims(contextOf(r)) })
}

// WithFilter guards only requests for which guarded returns true. All other requests run without a
// lock. With several WithFilters, all their functions must return true. Default: every request is
// guarded.
func WithFilter(guarded func(c *gin.Context) bool) httplock.Option {
	return httplock.WithFilter(func(r *http.Request) bool { return guarded(contextOf(r)) })
}

// WithErrorHandler makes h write the replies. When h is called, the handlers after the middleware
// have been aborted, and p's status and the Retry-After header are set. h may reply in any form; p
// marshals to an object of problem+json. [httplock.Reply] takes this option only inside of a handler
// that ginlock guards. Default: problem+json.
func WithErrorHandler(h func(c *gin.Context, p *httplock.Problem)) httplock.Option {
	return httplock.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, p *httplock.Problem) {
		c, out := contextOf(r), contextOf(r).Writer
		if w != http.ResponseWriter(out) { // the response of a Rule with Key and Idempotency is held back
			c.Writer = &writer{ResponseWriter: out, to: w, status: http.StatusOK, size: -1}
			defer func() { c.Writer = out }()
		}
		c.Abort()
		c.Status(p.Status)
		h(c, p)
		c.Writer.WriteHeaderNow()
	})
}

// WithSuccess defines which requests have succeeded, so that Rule.OnceFor remembers their work as
// done. Once a status was written, it decides; see [httplock.WithSuccess]. Before that, a request
// to which the handlers have added c.Error has not succeeded: an outer middleware often turns this
// error into the status 500. Default: requests with a status below 400 have succeeded.
func WithSuccess(succeeded func(c *gin.Context) bool) httplock.Option {
	return httplock.WithSuccess(func(r *http.Request, _ int) bool {
		v := visitOf(r)
		if !v.ran || v.failed() { // a lock inside may have refused the request
			return false
		}
		out := v.c.Writer
		defer func() { v.c.Writer = out }()
		v.c.Writer = v.wrote // the writer that the handlers used, also while the response is held back
		return succeeded(v.c)
	})
}

// WithRule lets adjust change the Rule of a request: its Mode, OnceFor or EndAfter. If adjust
// leaves Wait or Name empty, the middleware's value is used. With several WithRules, their
// functions run in order. A Key that adjust sets is used as it is: values in it are not encoded as
// in a template. Make it with key.Of if a client can choose a part of it. If adjust sets OnceFor,
// let the key say how ids are spelled, as in "order:{param.id|int}"; see [httplock.WithRule].
func WithRule(adjust func(c *gin.Context, rule *locker.Rule)) httplock.Option {
	return httplock.WithRule(func(r *http.Request, rule *locker.Rule) { adjust(contextOf(r), rule) })
}
