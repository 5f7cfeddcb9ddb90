package grpclock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/latchkit/latchkit/locker/key"
)

// Field is the part of a key that a field of the request makes: "order_id", or "item.sku" inside a message. In a template
// it is {req.item.sku}.
func Field(path string) key.Key { return key.Part("req", path) }

// Meta is the part of a key that the call's metadata makes. In a template it is {meta.x-tenant}.
func Meta(name string) key.Key { return key.Part("meta", name) }

// A KeyFunc makes the key of a call from its request. [KeyOf] returns one.
type KeyFunc struct {
	of      func(req any) (string, error)
	request protoreflect.FullName // what it wants; "" where that is not known
}

// KeyOf makes the key of a call by a function of its request: the fastest way, and one that survives renamed fields. "" is
// refused as a missing part. The key is taken as it is, so what a client can choose in it should have no ':'.
func KeyOf[Request any](of func(req Request) string) KeyFunc {
	if of == nil {
		return KeyFunc{}
	}
	var none Request
	f := KeyFunc{of: func(req any) (string, error) {
		r, ok := req.(Request)
		if !ok {
			return "", fmt.Errorf("the key is made of a %T, and the request is a %T", none, req)
		}
		return of(r), nil
	}}
	if m, ok := any(none).(proto.Message); ok {
		f.request = m.ProtoReflect().Descriptor().FullName()
	}
	return f
}

// grammar is what keys of calls with this request can be made of. request is nil where it is not known.
func grammar(request protoreflect.MessageDescriptor, secret []byte) key.Grammar[*call] {
	return key.Grammar[*call]{
		Secret: secret,
		Sources: map[string]key.Source[*call]{
			"req": {Noun: "field", Bind: func(path string) (key.Read[*call], error) { return bindField(request, path) }},
			"meta": {Noun: "metadata", Bind: func(name string) (key.Read[*call], error) {
				name = strings.ToLower(name)
				return func(ctx context.Context, _ *call) (string, error) {
					if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
						return values[0], nil
					}
					return "", nil
				}, nil
			}},
		},
	}
}

// bindField finds the fields of a path once, so that a call only follows them.
func bindField(request protoreflect.MessageDescriptor, path string) (key.Read[*call], error) {
	if request == nil {
		return nil, errors.New("the method has no descriptor in this program, so its fields are unknown; make the key with KeyOf")
	}
	var fields []protoreflect.FieldDescriptor
	message := request
	for step := range strings.SplitSeq(path, ".") {
		if message == nil {
			last := fields[len(fields)-1]
			return nil, fmt.Errorf("the field %s is a %s, there is nothing in it; leave out what follows", last.FullName(), last.Kind())
		}
		f := message.Fields().ByName(protoreflect.Name(step))
		switch {
		case f == nil:
			return nil, fmt.Errorf("the message %s has no field %q; it has %s", message.FullName(), step, fieldsOf(message))
		case f.IsMap():
			return nil, fmt.Errorf("the field %s is a map; name a field with one value", f.FullName())
		case f.IsList():
			return nil, fmt.Errorf("the field %s is a list; name a field with one value", f.FullName())
		}
		fields = append(fields, f)
		message = f.Message()
	}
	last := fields[len(fields)-1]
	switch {
	case message != nil:
		return nil, fmt.Errorf("the field %s is a message; name a field of it: %s", last.FullName(), fieldsOf(message))
	case last.Kind() == protoreflect.DoubleKind || last.Kind() == protoreflect.FloatKind:
		return nil, fmt.Errorf("the field %s is a %s, and nearly equal numbers would make different keys; name a whole number or a text", last.FullName(), last.Kind())
	}
	return func(_ context.Context, c *call) (string, error) { return read(c.req, request, fields) }, nil
}

func fieldsOf(m protoreflect.MessageDescriptor) string {
	var names []string
	for i := range m.Fields().Len() {
		names = append(names, string(m.Fields().Get(i).Name()))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// read follows fields into req, and returns the text of the last one; "" when a message on the way, or a field with presence,
// is not set.
func read(req any, request protoreflect.MessageDescriptor, fields []protoreflect.FieldDescriptor) (string, error) {
	message, ok := req.(proto.Message)
	if !ok {
		return "", fmt.Errorf("the request is a %T and no protobuf message", req)
	}
	m := message.ProtoReflect()
	if m.Descriptor() != request {
		return "", fmt.Errorf("the request is a %s and not the method's %s", m.Descriptor().FullName(), request.FullName())
	}
	last := len(fields) - 1
	for _, f := range fields[:last] {
		if !m.Has(f) {
			return "", nil
		}
		m = m.Get(f).Message()
	}
	f := fields[last]
	if f.HasPresence() && !m.Has(f) {
		return "", nil
	}
	return text(f, m.Get(f)), nil
}

// text is a value as it stands in a key.
func text(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return v.String()
	case protoreflect.BytesKind:
		return hex.EncodeToString(v.Bytes())
	case protoreflect.BoolKind:
		return strconv.FormatBool(v.Bool())
	case protoreflect.EnumKind:
		return strconv.Itoa(int(v.Enum()))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return strconv.FormatUint(v.Uint(), 10)
	default: // the signed ones: bindField has refused all others
		return strconv.FormatInt(v.Int(), 10)
	}
}
