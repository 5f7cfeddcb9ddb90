package fiberlock

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// New returns a handler that runs the handlers after it under the lock that k names. In the line
// of a route, call [MustNew]:
//
//	app.Post("/orders/:id/ship", fiberlock.MustNew(l, "order:{param.id|int}"), ship)
//
// A request waits for at most 5 s ([httplock.WithWait]). Then it is refused: 409 with Retry-After,
// and 503 while Redis does not answer. New returns an error, with advice in the text, if l is nil,
// or if k or an option is invalid.
func New(l locker.Locker, k httplock.Key, opts ...httplock.Option) (fiber.Handler, error) {
	lock, err := httplock.New(l, k, ofFiber(opts)...)
	if err != nil {
		return nil, err
	}
	return handler(lock), nil
}

// MustNew is [New] for the line of a route, which has no place for an error: it panics with the
// text of the error.
func MustNew(l locker.Locker, k httplock.Key, opts ...httplock.Option) fiber.Handler {
	return framework.Must(New(l, k, opts...))
}

// NewIdempotency returns a handler that runs a request with an Idempotency-Key once, and answers
// repeated requests with the same response. scope identifies the owner of the keys, such as
// "{claim.sub}". See [httplock.NewIdempotency]. The error is as with [New].
func NewIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) (fiber.Handler, error) {
	lock, err := httplock.NewIdempotency(l, store, scope, ofFiber(opts)...)
	if err != nil {
		return nil, err
	}
	return handler(lock), nil
}

// MustIdempotency is [NewIdempotency] for the line of a route: it panics as [MustNew] does.
func MustIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) fiber.Handler {
	return framework.Must(NewIdempotency(l, store, scope, opts...))
}

// FromContext returns the lease under which c's handler runs; see [httplock.FromContext].
func FromContext(c fiber.Ctx) (*locker.Lease, bool) {
	return httplock.FromContext(new(http.Request).WithContext(c.Context()))
}

// Ctx returns the Fiber context of a request. Use it in functions of options, because httplock
// calls these functions with the request:
//
//	httplock.WithClaims(func(r *http.Request) map[string]any {
//		return fiberlock.Ctx(r).Locals("claims").(jwt.MapClaims)
//	})
func Ctx(r *http.Request) fiber.Ctx { return visitOf(r).c }

type outcomeKey struct{}

// Outcome returns the Problem of a request whose handler was not run, ran without its lock or lost
// it, or whose response was not stored. For other requests it returns false. Use it in middlewares
// that log after the handler.
func Outcome(c fiber.Ctx) (*httplock.Problem, bool) {
	p, ok := c.Locals(outcomeKey{}).(*httplock.Problem)
	return p, ok
}

// ofFiber returns the options for Fiber, followed by the user's options.
func ofFiber(opts []httplock.Option) []httplock.Option {
	return append([]httplock.Option{
		httplock.WithFramework(reader),
		httplock.WithObserve(func(r *http.Request, p *httplock.Problem) { Ctx(r).Locals(outcomeKey{}, p) }),
		httplock.WithSuccess(func(r *http.Request, _ int) bool {
			v := visitOf(r)
			return v.ran && v.err == nil && v.c.Response().StatusCode() < http.StatusBadRequest
		}),
	}, opts...)
}

// reader reads requests with Fiber's methods.
var reader = framework.Reader{
	Name:    "fiberlock",
	Sources: sources{},
	Params:  params,
	Value: func(r *http.Request, name string) any {
		value := Ctx(r).Locals(name)
		if text, ok := value.(string); ok {
			return strings.Clone(text)
		}
		return value
	},
	Unused: "no route was registered by Handle; correct its name, or register the route",
}

// visit is one request on its way through httplock, which does not know Fiber. A visit has two
// roles. It is the request's context, which carries Fiber's context. It is also the handler that
// httplock calls, and it calls Fiber's handlers.
type visit struct {
	framework.Carrier
	c     fiber.Ctx
	outer context.Context // of the outer middlewares
	body  *lazyBody       // nil: fasthttp has read the body
	reply *reply
	probe *probe
	ran   bool
	err   error // the error that the handlers returned
	torn  error // the error of a streamed body that could not be held back
}

func visitOf(r *http.Request) *visit { return framework.Carried[*visit](r) }

// handler returns the handler of Fiber for a middleware of httplock.
func handler(lock func(http.Handler) http.Handler) fiber.Handler {
	return serve(lock(framework.Resume))
}

// serve returns a handler that handles requests with the handler locked, which runs
// framework.Resume under a lock.
func serve(locked http.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		v := &visit{c: c, outer: c.Context()}
		if v.givenUp() {
			return v.reason()
		}
		v.reply = newReply(c.Response())
		ctx, end := context.WithCancel(v.outer)
		defer end()
		v.Carrier = framework.Carrier{Context: ctx, Carried: v}
		r := v.request()
		defer func(body io.Closer) { _ = body.Close() }(r.Body)
		v.probe = newProbe(c.RequestCtx().Conn(), end)
		defer v.probe.stop()
		v.handle(locked, r)
		if v.givenUp() {
			return v.reason()
		}
		if v.body != nil && !v.ran && !v.body.whole {
			// Otherwise fasthttp would read the rest of the body as the next request.
			c.RequestCtx().SetConnectionClose()
		}
		if v.torn != nil {
			v.reply = &reply{header: v.reply.before, status: http.StatusInternalServerError}
		}
		v.reply.send(c.Response())
		if v.torn != nil {
			v.fail(v.torn)
		}
		if _, refused := Outcome(c); refused && v.reply.Written() {
			c.RequestCtx().Hijack(nil) // the client gets the Problem, and no hijacked connection
		}
		return nil
	}
}

// givenUp reports whether a middleware may write the reply now in another goroutine, as Fiber's
// timeout does. It replies when its context ends, and marks c as abandoned a moment later. If the
// handlers have succeeded, only the mark counts: they have written their response already.
func (v *visit) givenUp() bool {
	return v.c.IsAbandoned() || v.outer.Err() != nil && (!v.ran || v.err != nil)
}

// reason is the error for outer middlewares when fiberlock itself writes no reply.
func (v *visit) reason() error {
	if v.err != nil {
		return v.err
	}
	if p, refused := Outcome(v.c); refused && !v.ran {
		return fiber.NewError(p.Status, p.Title)
	}
	return fiber.ErrRequestTimeout
}

// handle calls locked. It ends the panic of ServeHTTP, because fasthttp has no panic that aborts a
// reply.
func (v *visit) handle(locked http.Handler, r *http.Request) {
	defer func() {
		if v.torn == nil {
			return
		}
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	locked.ServeHTTP(v.reply, r)
}

// ServeHTTP runs Fiber's handlers with a context that ends with the lock. If httplock holds the
// response back, ServeHTTP copies the response to w. If the handlers have streamed a body that
// fails midway, ServeHTTP panics: then httplock sends and stores nothing of the response. fasthttp
// does not read the stream for a HEAD request, so there the stream cannot fail.
func (v *visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.probe.stop()
	v.ran = true
	v.err = v.next(r)
	if v.givenUp() { // the work has no response that could be stored
		v.err = v.reason()
		return
	}
	if v.err != nil {
		v.fail(v.err)
	}
	if v.direct(w) {
		return
	}
	if err := copyTo(w, v.c.Response()); err != nil && !v.c.RequestCtx().IsHead() {
		v.torn = err
		panic(http.ErrAbortHandler)
	}
}

// fail lets the ErrorHandler of the app write the reply to an error.
func (v *visit) fail(err error) {
	if err := v.c.App().ErrorHandler(v.c, err); err != nil {
		v.c.Status(fiber.StatusInternalServerError)
	}
}

// next calls Fiber's next handlers with r's context.
func (v *visit) next(r *http.Request) error {
	if err := v.handBack(r); err != nil {
		return err
	}
	before := v.c.Context()
	v.c.SetContext(r.Context())
	restore := func() { v.c.SetContext(before) }
	defer func() {
		if !v.c.IsAbandoned() { // otherwise a handler may still use c
			restore()
		}
	}()
	if encodings := v.c.Get(fiber.HeaderAcceptEncoding); encodings != "" && r.Header.Get(fiber.HeaderAcceptEncoding) == "" {
		encodings = strings.Clone(encodings)
		v.c.Request().Header.Del(fiber.HeaderAcceptEncoding) // httplock has removed it, so that the stored response is not compressed
		restore = func() {
			v.c.SetContext(before)
			v.c.Request().Header.Set(fiber.HeaderAcceptEncoding, encodings)
		}
	}
	return v.c.Next()
}

// direct reports whether w is the reply itself. Otherwise w is a writer with which httplock holds
// back the response.
func (v *visit) direct(w http.ResponseWriter) bool {
	if u, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
		w = u.Unwrap()
	}
	return w == http.ResponseWriter(v.reply)
}
