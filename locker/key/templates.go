package key

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Templates are the keys of one rule. A request locks all of these keys together.
type Templates[T any] []*Template[T]

// CompileAll reads the keys of one rule. There must be at least one key.
func (g Grammar[T]) CompileAll(keys ...Key) (Templates[T], error) {
	if len(keys) == 0 {
		return nil, errors.New("there is no key; name what is locked, such as \"order\" and a part")
	}
	templates := make(Templates[T], len(keys))
	for i, k := range keys {
		if slices.Contains(keys[:i], k) {
			return nil, fmt.Errorf("the rule has the key %q twice; keep one", k)
		}
		t, err := g.Compile(k)
		if err != nil {
			return nil, err
		}
		templates[i] = t
	}
	return templates, nil
}

// Name returns the Name of the first template.
func (ts Templates[T]) Name() string { return ts[0].Name() }

// Parts returns the parts that the templates read, in order.
func (ts Templates[T]) Parts() []Ref {
	var refs []Ref
	for _, t := range ts {
		refs = append(refs, t.Parts()...)
	}
	return refs
}

// Several reports whether a request can have more than one key.
func (ts Templates[T]) Several() bool { return len(ts) > 1 || ts[0].Several() }

// Keys returns the keys of a request without duplicates. There is at least one key, and there are
// at most [MaxKeys]. The error is an [*Error]. ctx goes to the functions that read parts.
func (ts Templates[T]) Keys(ctx context.Context, request T) ([]string, error) {
	if len(ts) == 1 {
		return ts[0].Keys(ctx, request)
	}
	var all []string
	for _, t := range ts {
		keys, err := t.Keys(ctx, request)
		if err != nil {
			return nil, err
		}
		all = append(all, keys...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > MaxKeys {
		return nil, &Error{Noun: "list of keys", Err: errTooMany}
	}
	return all, nil
}
