// Package framework has what httplock shares with the adapters of HTTP frameworks, and what users
// do not need.
package framework

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// A Reader says how httplock reads the requests of a framework.
type Reader struct {
	// Name is the name of the adapter. Errors begin with it.
	Name string
	// Sources reads the parts of keys.
	Sources Sources
	// Params returns the names of the parameters in a path, as the router writes them.
	Params func(path string) []string
	// Value reads the part {value.NAME}. nil: keys have no such part.
	Value func(r *http.Request, name string) any
	// Whole says that the framework sends a response after all handlers.
	Whole bool
	// Routed reports whether the router has found a route for r. nil: a middleware runs only for
	// routes.
	Routed func(r *http.Request) bool
	// Guards gets the middleware of each Rule from FromRules, with the route of the Rule.
	Guards func(route string, lock func(http.Handler) http.Handler)
	// Unused is what Validate says of a Rule that guards no route.
	Unused string
}

// Sources reads the parts of keys from the requests of a framework. A key must contain the values
// with which the handler works. Otherwise a client could choose one value for the lock, and
// another for the handler. So each method reads as the framework's own methods and the framework's
// binding read. If these may find different values, the method returns an error, and the request
// is refused.
//
// Each framework has rules of its own, even for the query and for cookies. [NetHTTP] is for those
// that read as net/http does.
type Sources interface {
	// Param reads a parameter of the route's path. The result declared is false if the route has no
	// such parameter.
	Param(r *http.Request, name string) (value string, declared bool)
	Query(r *http.Request, name string) (string, error)
	Header(r *http.Request, name string) (string, error)
	Cookie(r *http.Request, name string) (string, error)
	IP(r *http.Request) string
	// JSON reports whether the binding parses the body of r as JSON.
	JSON(r *http.Request) bool
	// Body returns the body as handlers see it, of which raw has arrived. If the body has more
	// bytes than most, Body may return only its beginning, which must be longer than most. If the
	// framework decodes no bodies, Body returns [Unencoded].
	Body(r *http.Request, raw []byte, most int64) ([]byte, error)
}

// ErrEncoding is the error of a body that a handler may read in another form than the key.
var ErrEncoding = errors.New("the body has a Content-Encoding; decode it before the lock, and remove the header")

// Unencoded returns the body raw if it is certain that raw is not the encoded form of another text
// that is JSON. A middleware inside of the lock could decode the body, and the handler could find
// another value in it. Bytes that are valid JSON cannot be the output of gzip or zstd, which begins
// with other bytes: then a middleware outside has decoded the body and kept the header, as Echo's
// does. The outputs of deflate and br can be valid JSON.
func Unencoded(r *http.Request, raw []byte) ([]byte, error) {
	values := r.Header["Content-Encoding"]
	switch {
	case len(values) == 0:
		return raw, nil
	case len(values) > 1:
		return nil, ErrEncoding
	}
	switch strings.ToLower(strings.TrimSpace(values[0])) {
	case "", "identity", "gzip", "x-gzip", "zstd":
		return raw, nil
	}
	return nil, ErrEncoding
}

// A Carrier is the context of a request on its way through httplock, which does not know the
// framework. It carries the adapter's own value of the request, which is also the handler that
// [Resume] calls.
type Carrier struct {
	context.Context
	Carried http.Handler
}

type carrierKey struct{}

// Value returns what c carries for a carrierKey, and values of the request's own context for other
// keys.
func (c *Carrier) Value(k any) any {
	if _, ok := k.(carrierKey); ok {
		return c.Carried
	}
	return c.Context.Value(k)
}

// Carried returns what the innermost Carrier of a request carries.
func Carried[T http.Handler](r *http.Request) T { return r.Context().Value(carrierKey{}).(T) }

// Resume is the handler that httplock runs under each lock. It calls what the request carries, so
// one handler is enough for all requests. With a separate handler for each request, each request
// would need a new middleware.
var Resume http.Handler = resumer{}

type resumer struct{}

func (resumer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	Carried[http.Handler](r).ServeHTTP(w, r)
}

// CarryForms passes on what handlers have read and parsed to the outer request. There the server
// finds the files of a multipart form, which it removes.
func CarryForms(to, from *http.Request) {
	to.Body, to.Form, to.PostForm, to.MultipartForm = from.Body, from.Form, from.PostForm, from.MultipartForm
}

// Must returns v, or panics with the text of err.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err.Error())
	}
	return v
}
