// Package framework has what httplock shares with the adapters of HTTP frameworks, and what users
// do not need.
package framework

import (
	"context"
	"net/http"
)

// A Reader says how httplock reads the requests of a framework. Its zero value is net/http's way.
type Reader struct {
	// Name is the name of the adapter. Errors begin with it.
	Name string
	// Param reads a parameter of the route's path. The result declared is false if the route has no
	// such parameter.
	Param func(r *http.Request, name string) (value string, declared bool)
	// Params returns the names of the parameters in a path, as the router writes them.
	Params func(path string) []string
	// Value reads the part {value.NAME}. nil: keys have no such part.
	Value func(r *http.Request, name string) any
	// IP reads the part {ip}.
	IP func(r *http.Request) string
	// Cookie reads the part {cookie.NAME}.
	Cookie func(r *http.Request, name string) string
	// JSON reports whether the framework's binding reads the body of r as JSON. nil: always.
	JSON func(r *http.Request) bool
	// Guards gets the middleware of each Rule from FromRules, with the route of the Rule.
	Guards func(route string, lock func(http.Handler) http.Handler)
	// Unused is what Validate says of a Rule that guards no route.
	Unused string
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
