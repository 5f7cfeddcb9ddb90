// Package typednil finds nil pointers inside interfaces.
package typednil

import (
	"reflect"
)

// Is also finds a nil pointer inside an interface. For example, a (*redis.Client)(nil) would panic
// only at its first use, far from the mistake.
func Is(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
