// Package typednil finds nil pointers inside interfaces.
package typednil

import (
	"reflect"
)

// Is reports whether v is nil, or an interface that contains a nil pointer. For example, a
// (*redis.Client)(nil) would panic only at its first use, far from the mistake.
func Is(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
