package asynqlock

import (
	"context"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker/key"
)

// Fields makes the key from prefix and from fields of the payload, which is a struct T. The fields
// are those with the tag `lock:"key"`, in their order, also inside nested structs. With
//
//	type Welcome struct {
//		UserID string `json:"user_id" lock:"key"`
//		Text   string `json:"text"`
//	}
//
// Fields[Welcome]("user") makes "user:42". `lock:"key,hmac"` replaces a field by its HMAC, see
// [WithSecret]. A field is a string, a number, a boolean, a value with a text
// (encoding.TextMarshaler, fmt.Stringer), or a pointer to one of these. An empty field is refused.
func Fields[T any](prefix string) Keys {
	return Keys{compile: func(c *config) (keyOf, error) {
		typ := reflect.TypeFor[T]()
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		parts, reads := []key.Key{key.Key(prefix)}, make(map[string]key.Read[reflect.Value])
		if err := appendTagged(typ, nil, nil, &parts, reads); err != nil {
			return nil, err
		}
		if len(parts) == 1 {
			return nil, fmt.Errorf("%v has no field with the tag `lock:\"key\"`", typ)
		}
		if prefix == "" || strings.ContainsAny(prefix, "{}") {
			return nil, fmt.Errorf("Fields(%q): give what comes before the fields, such as \"user\", without braces", prefix)
		}
		t, err := key.Grammar[reflect.Value]{Secret: c.secret, Sources: map[string]key.Source[reflect.Value]{
			"field": {Noun: "field", Bind: func(path string) (key.Read[reflect.Value], error) { return reads[path], nil }},
		}}.Compile(key.Join(parts...))
		if err != nil {
			return nil, err
		}
		decode := decoderOf[T](c.decode)
		return func(ctx context.Context, m *message) (string, error) {
			payload, err := decode(m.task)
			if err != nil {
				return "", err
			}
			return taskKey(t.Key(ctx, reflect.ValueOf(payload).Elem()))
		}, nil
	}}
}

// appendTagged appends to parts a part for each tagged field of the struct typ, and adds to reads
// the functions that read these fields of a payload. path and index lead to typ in the payload.
func appendTagged(typ reflect.Type, path []string, index []int, parts *[]key.Key, reads map[string]key.Read[reflect.Value]) error {
	if typ.Kind() != reflect.Struct {
		return fmt.Errorf("%v is not a struct, so it has no tags; use Key", typ)
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := strings.Join(append(path, f.Name), ".")
		index := append(slices.Clip(index), i)
		tag, has := f.Tag.Lookup("lock")
		p := key.Part("field", name)
		switch {
		case has && !f.IsExported():
			return fmt.Errorf("the field %s of %v has a tag and is not exported, so no decoder fills it; export the field", name, typ)
		case has && tag == "key,hmac":
			p = key.HMAC(p)
			fallthrough
		case has && tag == "key":
			format, err := formatOf(f.Type)
			if err != nil {
				return fmt.Errorf("the field %s of %v %w", name, typ, err)
			}
			*parts = append(*parts, p)
			reads[name] = func(_ context.Context, v reflect.Value) (string, error) {
				for v.Kind() == reflect.Pointer {
					v = v.Elem()
				}
				return format(v.FieldByIndex(index))
			}
		case has:
			return fmt.Errorf("the field %s of %v has the tag `lock:%q`; write `lock:\"key\"` or `lock:\"key,hmac\"`", name, typ, tag)
		case f.IsExported() && f.Type.Kind() == reflect.Struct:
			if err := appendTagged(f.Type, append(path, f.Name), index, parts, reads); err != nil {
				return err
			}
		}
	}
	return nil
}

// formatOf returns a function that formats a value of typ. If typ has MarshalText or String, these
// methods make the text, except for values of the kind string, which are used as they are.
func formatOf(typ reflect.Type) (func(reflect.Value) (string, error), error) {
	switch typ.Kind() {
	case reflect.String:
		return func(v reflect.Value) (string, error) { return v.String(), nil }, nil
	case reflect.Pointer:
		inside, err := formatOf(typ.Elem())
		if err != nil {
			return nil, err
		}
		return func(v reflect.Value) (string, error) {
			if v.IsNil() {
				return "", nil
			}
			return inside(v.Elem())
		}, nil
	default:
	}
	switch {
	case typ.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return func(v reflect.Value) (string, error) {
			text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
			return string(text), err
		}, nil
	case typ.Implements(reflect.TypeFor[fmt.Stringer]()):
		return func(v reflect.Value) (string, error) { return v.Interface().(fmt.Stringer).String(), nil }, nil
	}
	switch typ.Kind() {
	case reflect.Bool:
		return func(v reflect.Value) (string, error) { return key.Format(v.Bool()) }, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(v reflect.Value) (string, error) { return key.Format(v.Int()) }, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(v reflect.Value) (string, error) { return key.Format(v.Uint()) }, nil
	case reflect.Float32, reflect.Float64:
		return func(v reflect.Value) (string, error) { return key.Format(v.Float()) }, nil
	default:
		return nil, fmt.Errorf("is a %v, which is not a string, a number or a boolean; tag the fields inside it, or use Key", typ)
	}
}
