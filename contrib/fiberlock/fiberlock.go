// Package fiberlock guards Fiber 3 routes with locks. Keys, filters, options and replies are those
// of package httplock. Fiber's methods read the parts of keys: {param.id} is c.Params, {ip} is c.IP,
// and {value.user} is what an earlier middleware has put into c.Locals. c.Context() ends with the
// lock; c itself, which is a context too, never ends. A handler that returns an error has failed,
// and the ErrorHandler of the app replies to it before the lock is released. A handler that returns
// nil has succeeded when its status is below 400.
//
// What Fiber does otherwise: fasthttp sends a response after all handlers. So after the loss of a
// lock the reply is always replaced, and a client that reads slowly keeps no lock. A body that a
// handler streams, or a connection that it hijacks, is used after the release. Such a response is
// not stored: under [NewIdempotency], observers get lock-misconfigured, and a repeated request 409.
// Outer middlewares do not see the error of a handler. fasthttp does not notice that a client
// leaves: its request waits on, and its handler runs. In an app with StreamRequestBody, the body is
// read before the lock is taken, and one longer than BodyLimit gets 413. fasthttp forgets the bytes
// of a multipart form: NewIdempotency compares its fields, and the headers and sizes of its files.
// A key of the body needs JSON without a Content-Encoding, which c.Body would decode. A query
// parameter, a header or a cookie with several different values is refused, because c.Query and
// c.Bind().Query read different ones; c.Bind().All fills a field from the first source that has its
// name. App.Use does not know the parameters of a route: register a lock at its route, or use
// [FromRules]. Do not use the middleware timeout in a guarded route, because the handler goes on
// without its lock, nor c.End, which replies before the lock is released: httplock.WithWait and the
// Rule's EndAfter limit the wait and the work.
//
// To shut down, call Drain of the Locker beside app.ShutdownWithContext, then Close of the Locker.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package fiberlock

import (
	"maps"
	"net/http"
	"regexp"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// New returns a handler that runs the handlers after it under the lock that k names. A request
// waits for at most 5 s ([httplock.WithWait]). Then it is refused: 409, and 503 while Redis does
// not answer. The error says which argument is wrong. In the line of a route, call [MustNew]:
//
//	app.Post("/orders/:id/ship", fiberlock.MustNew(l, "order:{param.id|int}"), ship)
func New(l locker.Locker, k httplock.Key, opts ...httplock.Option) (fiber.Handler, error) {
	return handler(httplock.New(l, k, ofFiber(opts)...))
}

// MustNew is [New] for the line of a route: it panics with the text of the error.
func MustNew(l locker.Locker, k httplock.Key, opts ...httplock.Option) fiber.Handler {
	return framework.Must(New(l, k, opts...))
}

// NewIdempotency returns a handler that runs a request with an Idempotency-Key once, and answers
// repeated requests with the same response; see [httplock.NewIdempotency].
func NewIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) (fiber.Handler, error) {
	return handler(httplock.NewIdempotency(l, store, scope, ofFiber(opts)...))
}

// MustIdempotency is [NewIdempotency] for the line of a route: it panics as [MustNew] does.
func MustIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) fiber.Handler {
	return framework.Must(NewIdempotency(l, store, scope, opts...))
}

// handler returns the handler of Fiber for a middleware of httplock.
func handler(lock func(http.Handler) http.Handler, err error) (fiber.Handler, error) {
	if err != nil {
		return nil, err
	}
	return serve(lock(framework.Resume)), nil
}

// FromContext returns the lease under which c's handler runs; see [httplock.FromContext].
func FromContext(c fiber.Ctx) (*locker.Lease, bool) {
	return httplock.FromContext(new(http.Request).WithContext(c.Context()))
}

// Ctx returns the Fiber context of a request, for functions such as that of httplock.WithClaims.
func Ctx(r *http.Request) fiber.Ctx { return framework.Carried[*visit](r).c }

// A Guard has the locks of Rules. [FromRules] makes a Guard. A Guard is safe for concurrent use.
type Guard struct{ guard *httplock.Guard }

// FromRules compiles rules. The name of each Rule is a method and a path as they are registered,
// such as "POST /orders/:id". opts apply to all Rules. The error has a line for each wrong Rule.
func FromRules(l locker.Locker, rules httplock.Rules, opts ...httplock.Option) (*Guard, error) {
	guard, err := httplock.FromRules(l, rules, ofFiber(opts)...)
	if err != nil {
		return nil, err
	}
	return &Guard{guard}, nil
}

// Handle registers handlers for a route, such as "POST /orders/:id", under the lock of its Rule if
// it has one. For a group of routes, write the paths of the Rules without the group's prefix.
func (g *Guard) Handle(router fiber.Router, route string, handlers ...fiber.Handler) {
	method, path, _ := strings.Cut(strings.Join(strings.Fields(route), " "), " ")
	method = strings.ToUpper(method)
	var chain []any
	if locked := g.guard.Wrap(method+" "+path, framework.Resume); locked != framework.Resume {
		chain = append(chain, serve(locked))
	}
	for _, h := range handlers {
		chain = append(chain, h)
	}
	router.Add([]string{method}, path, chain[0], chain[1:]...)
}

// Validate returns an error that names the Rules which guard no route, when all are registered.
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

// ofFiber returns the options for Fiber, followed by the user's options.
func ofFiber(opts []httplock.Option) []httplock.Option {
	return append([]httplock.Option{
		httplock.WithFramework(reader),
		httplock.WithSuccess(func(r *http.Request, status int) bool {
			return framework.Carried[*visit](r).err == nil && status < http.StatusBadRequest
		}),
	}, opts...)
}

// reader reads requests with Fiber's methods.
var reader = framework.Reader{
	Name:    "fiberlock",
	Sources: sources{},
	Whole:   true,
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

// visit is a request in httplock: its context, and the handler that httplock calls.
type visit struct {
	framework.Carrier
	c     fiber.Ctx
	reply *reply
	err   error // the error that the handlers returned
}

// serve returns Fiber's handler for locked, which runs framework.Resume under a lock.
func serve(locked http.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		if err := readStream(c); err != nil {
			c.RequestCtx().SetConnectionClose() // fasthttp would read the rest of the body as a request
			return err
		}
		v := &visit{c: c, reply: newReply(c.Response())}
		v.Carrier = framework.Carrier{Context: c.Context(), Carried: v}
		locked.ServeHTTP(v.reply, requestOf(c).WithContext(v))
		v.reply.send(c.Response())
		return nil
	}
}

// ServeHTTP runs Fiber's handlers with a context that ends with the lock. If httplock stores the
// response, ServeHTTP copies it to w.
func (v *visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if v.err = v.next(r); v.err != nil && v.c.App().ErrorHandler(v.c, v.err) != nil {
		v.c.Status(fiber.StatusInternalServerError)
	}
	resp := v.c.Response()
	switch {
	case w == http.ResponseWriter(v.reply): // not stored
		v.reply.seen = resp.StatusCode()
	case resp.IsBodyStream() || resp.StatusCode() == fiber.StatusSwitchingProtocols:
		v.reply.past = resp.StatusCode()
	default:
		maps.Copy(w.Header(), headerOf(resp))
		w.WriteHeader(resp.StatusCode())
		_, _ = w.Write(resp.Body()) // httplock itself reports a response that is too long
	}
}

// next calls Fiber's next handlers with r's context.
func (v *visit) next(r *http.Request) error {
	before := v.c.Context()
	v.c.SetContext(r.Context())
	defer v.c.SetContext(before)
	// httplock has removed this header where it stores the response, which must not be compressed.
	if encodings := strings.Clone(v.c.Get(fiber.HeaderAcceptEncoding)); encodings != r.Header.Get(fiber.HeaderAcceptEncoding) {
		v.c.Request().Header.Del(fiber.HeaderAcceptEncoding)
		defer v.c.Request().Header.Set(fiber.HeaderAcceptEncoding, encodings)
	}
	return v.c.Next()
}
