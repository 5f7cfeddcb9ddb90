package key

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A Template makes the keys of requests of type T. [Grammar.Compile] returns a Template. A Template
// is safe for concurrent use.
type Template[T any] struct {
	text  Key
	name  string
	parts []part[T]
	tail  string // literal text after the last part
	many  int    // the index of the part that stands for several values; -1: there is none
	mac   *mac   // nil without a secret
}

// part is one value of a request, and the literal text before it.
type part[T any] struct {
	prefix  string
	ref     Ref
	noun    string
	read    Read[T]
	readAll ReadAll[T] // used instead of the field read if the part stands for several values
	filters []filter
}

// A Ref is a part as written in the template.
type Ref struct {
	Source, Name string
	Filters      string // such as "int", or "lower|hmac"
	HMAC         bool   // the last filter is hmac
	Several      bool   // the part has several values in one request
}

// MaxKeys is the largest number of keys of a request.
const MaxKeys = 100

// String returns the template's text.
func (t *Template[T]) String() string { return string(t.text) }

// Name returns the literal text before the first ':', or "lock" when there is none. It suits the
// Name of a Rule, because the text is fixed: no client can influence it.
func (t *Template[T]) Name() string { return t.name }

// Parts returns the parts that the template reads, in order.
func (t *Template[T]) Parts() []Ref {
	refs := make([]Ref, len(t.parts))
	for i, p := range t.parts {
		refs[i] = p.ref
	}
	return refs
}

// Several reports whether a request can have more than one key, because a part of the template
// stands for several values.
func (t *Template[T]) Several() bool { return t.many >= 0 }

// Key returns the key of a request. The error is an [*Error] if a part is empty or cannot be read,
// or if the request has more than one key. ctx goes to the functions that read parts.
func (t *Template[T]) Key(ctx context.Context, request T) (string, error) {
	if len(t.parts) == 0 {
		return t.tail, nil
	}
	if t.Several() {
		keys, err := t.Keys(ctx, request)
		if err != nil {
			return "", err
		}
		if len(keys) > 1 {
			return "", t.parts[t.many].fail(errSeveral)
		}
		return keys[0], nil
	}
	var room [128]byte
	key, err := t.append(room[:0], ctx, request, "")
	return string(key), err
}

// Keys returns the keys of a request, sorted and without duplicates. There is at least one key, and
// there are at most [MaxKeys]. The error is an [*Error]. ctx goes to the functions that read parts.
func (t *Template[T]) Keys(ctx context.Context, request T) ([]string, error) {
	if !t.Several() {
		key, err := t.Key(ctx, request)
		if err != nil {
			return nil, err
		}
		return []string{key}, nil
	}
	p := &t.parts[t.many]
	values, err := p.readAll(ctx, request)
	switch {
	case err != nil:
		return nil, p.fail(err)
	case len(values) == 0:
		return nil, p.fail(ErrMissing)
	}
	slices.Sort(values)
	values = slices.Compact(values)
	if len(values) > MaxKeys {
		return nil, p.fail(errTooMany)
	}
	keys := make([]string, len(values))
	for i, value := range values {
		key, err := t.append(nil, ctx, request, value)
		if err != nil {
			return nil, err
		}
		keys[i] = string(key)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// append appends the key of request to the bytes of key. If a part stands for several values, the
// parameter value is the one to use.
func (t *Template[T]) append(key []byte, ctx context.Context, request T, value string) ([]byte, error) { //nolint:revive // key is what append adds to
	for i := range t.parts {
		p := &t.parts[i]
		text := value
		if i != t.many {
			var err error
			if text, err = p.read(ctx, request); err != nil {
				return nil, p.fail(err)
			}
		}
		if text == "" {
			return nil, p.fail(ErrMissing)
		}
		for _, f := range p.filters {
			var err error
			if text, err = f(text); err != nil {
				return nil, p.fail(err)
			}
		}
		key = append(key, p.prefix...)
		if p.ref.HMAC {
			key = t.mac.appendSum(key, text)
		} else {
			key = appendValue(key, text)
		}
	}
	return append(key, t.tail...), nil
}

// fail returns err as the Error of this part.
func (p *part[T]) fail(err error) error { return &Error{Part: p.ref, Noun: p.noun, Err: err} }

// ErrMissing means that a part of the key is missing in the request, or is empty there.
var ErrMissing = errors.New("it is missing or empty")

var (
	errTooMany = fmt.Errorf("a request can lock at most %d keys", MaxKeys)
	errSeveral = errors.New("it stands for several values, and one value is needed")
)

// An Error names a part of a request from which no key can be made, and the reason. Its text names
// the part as the program names it, and never shows the part's value. So the text may be shown to a
// client.
type Error struct {
	Part Ref
	Noun string // the Noun of the part's Source
	Err  error  // ErrMissing, or the error of the function that reads the part
}

// Error returns, for example, `the request lacks the header "X-Tenant"`.
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
