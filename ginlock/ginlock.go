package ginlock

import (
	"bytes"
	"io"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// New returns a middleware that runs the handlers after it under the lock that k names, such as
// "order:{param.id}". The package's comment lists the parts of keys. Options of this package and of
// httplock set the lock up. New returns an error, with advice in the text, if l is nil, or if k or
// an option is invalid. In the line of a route, call [MustNew].
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
	paced   pacedWriter        // the value behind the field "wrote", if the response is paced
}

func visitOf(r *http.Request) *visit { return framework.Carried[*visit](r) }

// contextOf returns Gin's context of a request that httplock knows.
func contextOf(r *http.Request) *gin.Context { return visitOf(r).c }

// serve handles a request with the handler locked, which runs framework.Resume under a lock. A
// request without a route is not guarded, and Gin answers it.
func serve(c *gin.Context, locked http.Handler) {
	if c.FullPath() == "" {
		return
	}
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
		if p, ok := w.(pacer); ok && p.Unwrap() == http.ResponseWriter(out) {
			v.paced = pacedWriter{out, p}
			v.wrote = &v.paced
		} else {
			held := &writer{ResponseWriter: out, to: w, status: http.StatusOK, size: -1}
			v.wrote, settle = held, held.settle
		}
	}
	c.Writer = v.wrote
	c.Next()
	settle()
}
