package asynqlock

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker/key"
)

// Fields makes the key from prefix and from members of the JSON payload, like a [Template]. The
// struct T, into which the handler decodes the payload, says which members these are: those of the
// fields with the tag `lock:"key"`, in their order, also inside nested structs. With
//
//	type Welcome struct {
//		UserID string `json:"user_id" lock:"key"`
//		Text   string `json:"text"`
//	}
//
// Fields[Welcome]("user") is Template("user:{payload.user_id}"). `lock:"key,hmac"` replaces a
// member by its HMAC, see [WithSecret]. A field is a string, a number, a boolean, an
// encoding.TextMarshaler, or a pointer to one of these.
func Fields[T any](prefix string) Keys {
	return Keys{compile: func(c *config) (keyOf, error) {
		parts, err := appendTagged([]key.Key{key.Key(prefix)}, reflect.TypeFor[T](), "")
		switch {
		case err != nil:
			return nil, err
		case len(parts) == 1:
			return nil, fmt.Errorf("%v has no field with the tag `lock:\"key\"`", reflect.TypeFor[T]())
		case prefix == "" || strings.ContainsAny(prefix, "{}"):
			return nil, fmt.Errorf("Fields(%q): give what comes before the fields, such as \"user\", without braces", prefix)
		}
		return Template(template.Join(parts...)).compile(c)
	}}
}

// appendTagged appends to parts a part for each tagged field of the struct typ. path leads to typ
// in the payload, and is empty or ends with a dot.
func appendTagged(parts []key.Key, typ reflect.Type, path string) ([]key.Key, error) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%v is not a struct, so it has no tags; use KeyFunc", typ)
	}
	for f := range typ.Fields() {
		tag, has := f.Tag.Lookup("lock")
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inside := path
		if name != "" {
			inside += name + "."
		} else if !f.Anonymous { // JSON has the fields of an embedded struct beside the others
			name = f.Name
			inside += name + "."
		}
		p := template.Part("payload", path+name)
		switch {
		case has && (!f.IsExported() || f.Tag.Get("json") == "-"):
			return nil, fmt.Errorf("no decoder fills the field %s of %v: it is not exported, or has the tag `json:\"-\"`", f.Name, typ)
		case has && !hasText(f.Type):
			return nil, fmt.Errorf("the field %s of %v is a %v, which is not a string, a number or a boolean; tag the fields inside it, or use KeyFunc", f.Name, typ, f.Type)
		case has && tag == "key":
			parts = append(parts, p)
		case has && tag == "key,hmac":
			parts = append(parts, template.HMAC(p))
		case has:
			return nil, fmt.Errorf("the field %s of %v has the tag `lock:%q`; write `lock:\"key\"` or `lock:\"key,hmac\"`", f.Name, typ, tag)
		case f.Type.Kind() == reflect.Struct && name != "-":
			var err error
			if parts, err = appendTagged(parts, f.Type, inside); err != nil {
				return nil, err
			}
		}
	}
	return parts, nil
}

// hasText reports whether JSON writes a value of typ as a string, a number or a boolean.
func hasText(typ reflect.Type) bool {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	kind := typ.Kind()
	return kind == reflect.String || reflect.Bool <= kind && kind <= reflect.Float64 ||
		reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
