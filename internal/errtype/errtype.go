// Package errtype finds an error of one type in a chain of errors.
package errtype

import "errors"

// As returns the first error of type T in err's tree, as errors.As finds it. The standard library
// has the same function, errors.AsType, since Go 1.26; the root module supports Go 1.25.
func As[T error](err error) (T, bool) {
	var target T
	ok := errors.As(err, &target)
	return target, ok
}
