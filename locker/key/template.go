package key

import (
	"context"
	"errors"
	"fmt"
)

// A Template makes the keys of requests of type T. [Grammar.Compile] returns one; it is safe for concurrent use.
type Template[T any] struct {
	text  Key
	name  string
	parts []part[T]
	tail  string // literal text after the last part
	mac   *mac   // nil without a secret
}

// part is one value of a request, and the literal text before it.
type part[T any] struct {
	before string
	ref    Ref
	noun   string
	read   Read[T]
}

// A Ref is a part as the template's text has it.
type Ref struct {
	Source, Name string
	HMAC         bool
}

// String returns the template's text.
func (t *Template[T]) String() string { return string(t.text) }

// Name returns the literal text before the first ':', "lock" when there is none: a Rule's Name that no client can choose.
func (t *Template[T]) Name() string { return t.name }

// Parts returns what the template reads, in order.
func (t *Template[T]) Parts() []Ref {
	refs := make([]Ref, len(t.parts))
	for i, p := range t.parts {
		refs[i] = p.ref
	}
	return refs
}

// Key returns the key of a request. Its error is an [*Error]: a part is empty, or cannot be read. ctx is handed to the
// functions that read parts.
func (t *Template[T]) Key(ctx context.Context, in T) (string, error) {
	if len(t.parts) == 0 {
		return t.tail, nil
	}
	var room [128]byte
	key := room[:0]
	for i := range t.parts {
		p := &t.parts[i]
		value, err := p.read(ctx, in)
		if err == nil && value == "" {
			err = ErrMissing
		}
		if err != nil {
			return "", &Error{Part: p.ref, Noun: p.noun, Err: err}
		}
		key = append(key, p.before...)
		if p.ref.HMAC {
			key = t.mac.appendSum(key, value)
		} else {
			key = appendValue(key, value)
		}
	}
	return string(append(key, t.tail...)), nil
}

// ErrMissing says that a request lacks a part of its key, or the part is empty.
var ErrMissing = errors.New("it is missing or empty")

// An Error says which part of a request no key could be made of, and why. Its text names the part, as the program calls
// it, and never shows its value: it may be told to a client.
type Error struct {
	Part Ref
	Noun string // of the part's Source
	Err  error  // ErrMissing, or what the function that reads the part said
}

// Error returns for example `the request lacks the header "X-Tenant"`.
func (e *Error) Error() string {
	what := "the " + e.Noun
	if e.Part.Name != "" {
		what = fmt.Sprintf("the %s %q", e.Noun, e.Part.Name)
	}
	if e.Err == ErrMissing {
		return "the request lacks " + what
	}
	return fmt.Sprintf("%s is not usable: %v", what, e.Err)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }
