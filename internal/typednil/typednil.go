// Package typednil refuses nil arguments where they are given, and finds nil pointers inside
// interfaces.
package typednil

import (
	"context"
	"fmt"
	"reflect"
)

// Context returns an error if ctx is nil. The parameter where names the exported function.
func Context(where string, ctx context.Context) error { //nolint:revive // the error names the function first
	if ctx == nil {
		return fmt.Errorf("%s: the context is nil; give context.Background()", where)
	}
	return nil
}

// Is reports whether v is nil, or an interface that contains a nil pointer. For example, a
// (*redis.Client)(nil) would panic only at its first use, far from the mistake.
func Is(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
