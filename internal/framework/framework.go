// Package framework lets httplock read a request as the handlers of a web framework read it. If
// httplock and a handler read different values, the lock is on one value and the work is on
// another.
package framework

import "net/http"

// A Reader has the methods of a framework. Without a method, httplock reads as net/http does.
type Reader struct {
	// Cookie returns a cookie's value, or "".
	Cookie func(r *http.Request, name string) string
	// JSON reports whether the framework's own binding reads the body of r as JSON. Other bodies
	// are refused if the key needs the body.
	JSON func(r *http.Request) bool
}
