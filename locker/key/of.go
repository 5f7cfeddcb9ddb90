package key

import (
	"fmt"
	"strings"

	"github.com/latchkit/latchkit/internal/template"
)

// A Key is the text of a template, such as "order:{param.id|int}". An untyped constant is a Key.
type Key = template.Key

// Of returns the key of name and values, encoded as a template would: Of("order", "acme:eu", 42) is
// "order:acme%3Aeu:42", which is also the key of "order:{header.X-Tenant}:{param.id|int}". Use Of
// wherever a program makes a key by hand, because with plain concatenation two different requests
// can have the same key. Of has no filters: give it the number or the UUID that the program has
// parsed, and not the client's text, which may be another spelling of it.
//
// A value is a string, a fmt.Stringer, a number or a boolean. A number has one text: 1.0 and 1 make
// the same key. For an empty value or a value of another type, Of returns "", and every Locker
// refuses the empty key with locker.ErrInvalidKey. [Make] returns the reason.
func Of(name string, values ...any) string {
	key, err := Make(name, values...)
	if err != nil {
		return ""
	}
	return key
}

// Make does the work of [Of], but returns an error instead of "". The error does not show the
// values.
func Make(name string, values ...any) (string, error) {
	switch {
	case name == "":
		return "", fmt.Errorf("key: the name is empty; say what is locked, such as %q", "order")
	case strings.ContainsAny(name, "{}"):
		return "", fmt.Errorf("key: the name %q has a brace; write the name as literal text, and give values as further arguments", name)
	case strings.HasPrefix(name, template.Reserved):
		return "", fmt.Errorf("key: the name %q starts with %q, which is reserved for the locks' own data", name, template.Reserved)
	}
	key := []byte(name)
	for i, value := range values {
		text, err := template.Format(value)
		if err == nil && text == "" {
			err = template.ErrMissing
		}
		if err != nil {
			return "", fmt.Errorf("key: value %d of %q: %w", i+1, name, err)
		}
		key = template.AppendValue(append(key, ':'), text)
	}
	if len(key) > template.MaxKey {
		return "", fmt.Errorf("key: the key of %q has %d bytes, and at most %d are allowed; give fewer values or a shorter name", name, len(key), template.MaxKey)
	}
	return string(key), nil
}
