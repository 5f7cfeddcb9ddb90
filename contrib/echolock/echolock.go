package echolock

import (
	"cmp"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// New returns a middleware that runs a handler under the lock that k names. In the line of a route,
// call [MustNew]:
//
//	e.POST("/orders/:id/ship", ship, echolock.MustNew(l, "order:{param.id|int}"))
//
// A request waits for at most 5 s ([httplock.WithWait]). Then it is refused: 409 with Retry-After,
// and 503 while Redis does not answer. New returns an error, with advice in the text, if l is nil,
// or if k or an option is invalid.
func New(l locker.Locker, k httplock.Key, opts ...httplock.Option) (echo.MiddlewareFunc, error) {
	lock, err := httplock.New(l, k, ofEcho(opts)...)
	if err != nil {
		return nil, err
	}
	return middleware(lock), nil
}

// MustNew is [New] for the line of a route, which has no place for an error: it panics with the
// text of the error.
func MustNew(l locker.Locker, k httplock.Key, opts ...httplock.Option) echo.MiddlewareFunc {
	return framework.Must(New(l, k, opts...))
}

// NewIdempotency returns a middleware that runs a request with an Idempotency-Key once, and answers
// repeated requests with the same response. scope identifies the owner of the keys, such as
// "{claim.sub}". See [httplock.NewIdempotency]. The error is as with [New].
func NewIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) (echo.MiddlewareFunc, error) {
	lock, err := httplock.NewIdempotency(l, store, scope, ofEcho(opts)...)
	if err != nil {
		return nil, err
	}
	return middleware(lock), nil
}

// MustIdempotency is [NewIdempotency] for the line of a route: it panics as [MustNew] does.
func MustIdempotency(l locker.Locker, store idempotency.Store, scope httplock.Key, opts ...httplock.Option) echo.MiddlewareFunc {
	return framework.Must(NewIdempotency(l, store, scope, opts...))
}

// FromContext returns the lease under which c's handler runs; see [httplock.FromContext].
func FromContext(c echo.Context) (*locker.Lease, bool) { return httplock.FromContext(c.Request()) }

const outcomeKey = "github.com/latchkit/latchkit/contrib/echolock: outcome"

// Outcome returns the Problem of a request whose handler was not run or lost its lock. For other
// requests it returns false. Use it in middlewares that log after the handler.
func Outcome(c echo.Context) (*httplock.Problem, bool) {
	p, ok := c.Get(outcomeKey).(*httplock.Problem)
	return p, ok
}

// ofEcho returns the options for Echo, followed by the user's options.
func ofEcho(opts []httplock.Option) []httplock.Option {
	return append([]httplock.Option{
		httplock.WithFramework(reader),
		httplock.WithObserve(func(r *http.Request, p *httplock.Problem) { visitOf(r).c.Set(outcomeKey, p) }),
		httplock.WithSuccess(func(r *http.Request, status int) bool {
			v := visitOf(r)
			return v.ran && !v.failed && status < http.StatusBadRequest
		}),
	}, opts...)
}

// reader reads requests with Echo's methods.
var reader = framework.Reader{
	Name:    "echolock",
	Sources: sources{},
	Params:  params,
	Value:   func(r *http.Request, name string) any { return visitOf(r).c.Get(name) },
	Unused:  "there is no such route; correct its name, or register the route before Validate is called",
}

// sources reads the parts of keys with Echo's methods. Echo's binder reads the same values: it
// takes the first of several values, too, and looks for another case of a name only if the name
// itself is missing.
type sources struct{}

var _ framework.Sources = sources{}

// Param returns c.Param.
func (sources) Param(r *http.Request, name string) (string, bool) {
	c := visitOf(r).c
	return c.Param(name), slices.Contains(c.ParamNames(), name)
}

// Query returns c.QueryParam.
func (sources) Query(r *http.Request, name string) (string, error) {
	return visitOf(r).c.QueryParam(name), nil
}

// Header returns the first value. net/http moves the header Host to the field Host.
func (sources) Header(r *http.Request, name string) (string, error) {
	if strings.EqualFold(name, "Host") {
		return r.Host, nil
	}
	return visitOf(r).c.Request().Header.Get(name), nil
}

// Cookie returns the value of c.Cookie.
func (sources) Cookie(r *http.Request, name string) (string, error) {
	cookie, err := visitOf(r).c.Cookie(name)
	if err != nil {
		return "", nil //nolint:nilerr // "" has the same meaning as ErrNoCookie: the part is missing
	}
	return cookie.Value, nil
}

// IP returns c.RealIP.
func (sources) IP(r *http.Request) string { return visitOf(r).c.RealIP() }

// JSON reports whether c.Bind parses the body as JSON. c.Bind compares the type byte by byte, and
// ignores a body of which the length is said to be 0.
func (sources) JSON(r *http.Request) bool {
	base, _, _ := strings.Cut(r.Header.Get(echo.HeaderContentType), ";")
	return strings.TrimSpace(base) == echo.MIMEApplicationJSON && r.ContentLength != 0
}

// Body returns the body as it has arrived: Echo itself decodes no bodies. Its middleware Decompress
// does, and keeps the header.
func (sources) Body(r *http.Request, raw []byte, _ int64) ([]byte, error) {
	return framework.Unencoded(r, raw)
}

// visit is one request on its way through httplock, which does not know Echo. A visit has two
// roles. It is the request's context, which carries Echo's context. It is also the handler that
// httplock calls, and it calls Echo's handlers.
type visit struct {
	framework.Carrier

	c    echo.Context
	next echo.HandlerFunc
	ran  bool
	err  error // the error that next returned
	// failed means that next has returned an error before it has written a status. After that, the
	// status decides, because Echo returns the error of a write, too.
	failed bool
}

func visitOf(r *http.Request) *visit { return framework.Carried[*visit](r) }

func middleware(lock func(http.Handler) http.Handler) echo.MiddlewareFunc {
	locked := lock(framework.Resume)
	unknown := table[bool]{read: pathsOfUnknown}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if unknown.at(c, func(unknown bool) bool { return !unknown }) {
				return next(c)
			}
			return serve(c, locked, next)
		}
	}
}

// table keeps what read returns about the paths of each Echo that a middleware serves.
type table[T any] struct {
	read  func(*echo.Echo) map[string]T
	known sync.Map // *echo.Echo → map[string]T
}

// at returns what read says about c's path. Routes can be registered after the first request, so at
// reads them again unless a new route cannot change what it knows, which final reports.
func (t *table[T]) at(c echo.Context, final func(T) bool) T {
	if known, ok := t.known.Load(c.Echo()); ok {
		if of := known.(map[string]T)[c.Path()]; final(of) {
			return of
		}
	}
	paths := t.read(c.Echo())
	t.known.Store(c.Echo(), paths)
	return paths[c.Path()]
}

// pathsOfUnknown returns the paths under which only Group.Use has registered a handler: Echo's own
// one, for unknown requests, which needs no lock.
func pathsOfUnknown(e *echo.Echo) map[string]bool {
	own := runtime.FuncForPC(reflect.ValueOf(echo.NotFoundHandler).Pointer()).Name()
	paths := make(map[string]bool)
	for r := range routesOf(e) {
		other, seen := paths[r.Path]
		paths[r.Path] = r.Method == echo.RouteNotFound && r.Name == own && (other || !seen)
	}
	return paths
}

// serve handles a request with the handler locked, which runs framework.Resume under a lock. Echo's
// own handlers of requests without a route need no lock.
func serve(c echo.Context, locked http.Handler, next echo.HandlerFunc) error {
	switch {
	case c.Path() == "":
		return unrouted(c)
	case isEchos(c, c.Handler()), isEchos(c, next):
		return next(c)
	}
	v := &visit{c: c, next: next}
	v.Carrier = framework.Carrier{Context: c.Request().Context(), Carried: v}
	r := c.Request().WithContext(v)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = body{r.Body}
	}
	defer framework.CarryForms(c.Request(), r) // runs also if a handler panics
	locked.ServeHTTP(outer{c.Response()}, r)
	return v.err // the reply was written already, so Echo only passes the error to loggers
}

// body is the body of a request. It tells httplock that a body is too long for Echo's middleware
// BodyLimit, whose error httplock does not know.
type body struct{ io.ReadCloser }

// Read adds the error of net/http for a long body to the error of BodyLimit.
func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if e, ok := err.(*echo.HTTPError); ok && e.Code == http.StatusRequestEntityTooLarge { //nolint:errorlint // c.Bind does not unwrap it either
		err = e.WithInternal(&http.MaxBytesError{})
	}
	return n, err
}

// unrouted answers a request without a route. It calls Echo's handler, and not the next middleware:
// in Echo.Pre, before the router, that middleware would run the handler of a route without its
// lock.
func unrouted(c echo.Context) error { return c.Handler()(c) }

// isEchos reports whether h is Echo's own handler of requests without a route: that of unknown
// paths, of unknown methods, or of OPTIONS, which is a closure. The methods that Echo has found for
// the path do not tell it: they stay in c when a middleware looks for another route.
func isEchos(c echo.Context, h echo.HandlerFunc) bool {
	return is(h, echo.NotFoundHandler) || is(h, echo.MethodNotAllowedHandler) ||
		c.Request().Method == http.MethodOptions && c.Get(echo.ContextKeyHeaderAllow) != nil
}

// is reports whether h runs the code of known, which is not a closure.
func is(h, known echo.HandlerFunc) bool {
	return reflect.ValueOf(h).Pointer() == reflect.ValueOf(known).Pointer()
}

// outer is the response of the outer middlewares. It tells httplock whether the reply has begun,
// also if a handler has written to this response and not to its own.
type outer struct{ *echo.Response }

// Status returns the status of the reply.
func (o outer) Status() int { return cmp.Or(o.Response.Status, http.StatusOK) }

// Written reports whether the reply has begun.
func (o outer) Written() bool { return o.Committed }

// Flush begins the reply. Echo's Response sends the header then, and does not note it.
func (o outer) Flush() {
	if !o.Committed {
		o.WriteHeader(o.Status())
	}
	o.Response.Flush()
}

// ServeHTTP runs Echo's handlers. The request of these handlers has a context that ends with the
// lock, and httplock may hold back their response. Afterwards ServeHTTP restores the request and
// the response of the outer middlewares.
func (v *visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, response := v.c.Request(), v.c.Response()
	v.ran = true
	v.c.SetRequest(r)
	v.c.SetResponse(echo.NewResponse(w, v.c.Echo()))
	defer func() {
		framework.CarryForms(r, v.c.Request())
		v.c.SetRequest(request)
		v.c.SetResponse(response)
	}()
	if v.err = v.next(v.c); v.err != nil {
		v.failed = !v.c.Response().Committed
		v.c.Error(v.err)
	}
}
