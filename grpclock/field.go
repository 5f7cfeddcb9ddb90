package grpclock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/latchkit/latchkit/internal/template"
)

// path leads to a field of a request, through at most one list.
type path struct {
	request protoreflect.MessageDescriptor
	fields  []protoreflect.FieldDescriptor
	list    int // the index in fields of the list whose elements are read; -1: there is no list
}

// anyElement is the step of a path that stands for each element of the list before this step.
const anyElement = "*"

// pathOf finds the fields of a path when the rule is compiled, so that each call only reads these
// fields.
func pathOf(request protoreflect.MessageDescriptor, text string) (path, error) {
	p := path{request: request, list: -1}
	if request == nil {
		return p, errors.New("the method has no descriptor in this program, so its fields are unknown; make the key with KeyOf")
	}
	message := request
	steps := strings.Split(text, ".")
	for i := 0; i < len(steps); i++ {
		if message == nil {
			last := p.last()
			return p, fmt.Errorf("the field %s is a %s, there is nothing in it; leave out what follows", last.FullName(), last.Kind())
		}
		f := message.Fields().ByName(protoreflect.Name(steps[i]))
		switch {
		case f == nil:
			return p, fmt.Errorf("the message %s has no field %q; it has %s", message.FullName(), steps[i], fieldsOf(message))
		case f.IsMap():
			return p, fmt.Errorf("the field %s is a map; name a field with one value", f.FullName())
		case f.IsList():
			if i++; i == len(steps) || steps[i] != anyElement {
				return p, fmt.Errorf("the field %s is a list; write %s.* for a lock on each element", f.FullName(), strings.Join(steps[:i], "."))
			}
			if p.list >= 0 {
				return p, fmt.Errorf("the field %s is a list inside of a list, and a key can name the elements of one list only", f.FullName())
			}
			p.list = len(p.fields)
		}
		p.fields = append(p.fields, f)
		message = f.Message()
	}
	last := p.last()
	switch {
	case message != nil:
		return p, fmt.Errorf("the field %s is a message; name a field of it: %s", last.FullName(), fieldsOf(message))
	case last.Kind() == protoreflect.DoubleKind || last.Kind() == protoreflect.FloatKind:
		return p, fmt.Errorf("the field %s is a %s, and nearly equal numbers would make different keys; name a whole number or a text", last.FullName(), last.Kind())
	}
	return p, nil
}

func (p path) last() protoreflect.FieldDescriptor { return p.fields[len(p.fields)-1] }

// chosen returns a function that reports whether a client chooses the text of a part: metadata, and
// strings of the request. A field of another kind has one text for each value.
func chosen(request protoreflect.MessageDescriptor) func(template.Ref) bool {
	return func(part template.Ref) bool {
		if part.Source != "req" {
			return part.Source == "meta"
		}
		p, err := pathOf(request, part.Name)
		return err == nil && p.last().Kind() == protoreflect.StringKind
	}
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

// bindField returns a function that reads the field at the end of a path.
func bindField(request protoreflect.MessageDescriptor, name string) (read, error) {
	p, err := pathOf(request, name)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, c *call) (string, error) {
		m, err := p.message(c.req)
		if err != nil {
			return "", err
		}
		return follow(m, p.fields), nil
	}, nil
}

// bindFields returns a function that reads a field of each element of a list.
func bindFields(request protoreflect.MessageDescriptor, name string) (readAll, error) {
	p, err := pathOf(request, name)
	if err != nil {
		return nil, err
	}
	if p.list < 0 {
		return nil, fmt.Errorf("no field in the path is a list; leave the %q out", anyElement)
	}
	return func(_ context.Context, c *call) ([]string, error) {
		m, err := p.message(c.req)
		if err != nil {
			return nil, err
		}
		return p.readAll(m), nil
	}, nil
}

// message returns the request as a message of the type for which p was made.
func (p path) message(req any) (protoreflect.Message, error) {
	message, ok := req.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("the request is a %T and not a protobuf message", req)
	}
	m := message.ProtoReflect()
	if m.Descriptor() != p.request {
		return nil, fmt.Errorf("the request is a %s and not the method's %s", m.Descriptor().FullName(), p.request.FullName())
	}
	return m, nil
}

// follow reads one field after the other, and returns the text of the last field. The text is "" if
// a message on the way, or a field with presence, is not set.
func follow(m protoreflect.Message, fields []protoreflect.FieldDescriptor) string {
	last := len(fields) - 1
	for _, f := range fields[:last] {
		if !m.Has(f) {
			return ""
		}
		m = m.Get(f).Message()
	}
	f := fields[last]
	if f.HasPresence() && !m.Has(f) {
		return ""
	}
	return text(f, m.Get(f))
}

// readAll returns the text for each element of the list.
func (p path) readAll(m protoreflect.Message) []string {
	for _, f := range p.fields[:p.list] {
		if !m.Has(f) {
			return nil
		}
		m = m.Get(f).Message()
	}
	list := m.Get(p.fields[p.list]).List()
	texts := make([]string, list.Len())
	for i := range texts {
		if inside := p.fields[p.list+1:]; len(inside) > 0 {
			texts[i] = follow(list.Get(i).Message(), inside)
		} else {
			texts[i] = text(p.fields[p.list], list.Get(i))
		}
	}
	return texts
}

// text returns the value v as a text for a key.
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
	default: // the signed integers, because pathOf has refused all other kinds
		return strconv.FormatInt(v.Int(), 10)
	}
}
