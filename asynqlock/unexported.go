package asynqlock

import (
	"fmt"
	"reflect"
)

// unexported returns an unexported field of the struct to which p points. This package needs
// values that asynq does not export: the options of a task, and the entries of a scheduler. If this
// version of asynq lacks the field, or the field has another type, the function returns an error.
func unexported[T any](p any, name string) (T, error) {
	var none T
	v := reflect.ValueOf(p)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return none, fmt.Errorf("%T has no field %s", p, name)
	}
	f := v.Elem().FieldByName(name)
	if !f.IsValid() || !f.Type().AssignableTo(reflect.TypeFor[T]()) {
		return none, fmt.Errorf("this version of asynq is not supported: %T has no field %s of type %v", p, name, reflect.TypeFor[T]())
	}
	value, ok := reflect.TypeAssert[T](reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem())
	if !ok && !f.IsZero() {
		return none, fmt.Errorf("this version of asynq is not supported: the field %s of %T is no %v", name, p, reflect.TypeFor[T]())
	}
	return value, nil
}
