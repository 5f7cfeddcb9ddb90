// Package errtype finds an error of one type in a chain of errors.
package errtype

import "errors"

// As returns the first error of type T in err's tree, as errors.As finds it. It does what
// errors.AsType of the standard library does.
func As[T error](err error) (T, bool) {
	var target T
	ok := errors.As(err, &target)
	return target, ok
}
