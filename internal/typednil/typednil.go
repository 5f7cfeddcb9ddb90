// Package typednil finds nil pointers inside interfaces.
package typednil

import (
	"reflect"
)

// Is finds a nil inside an interface too: a (*redis.Client)(nil) would panic at its first use, far
// from its cause.
func Is(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
