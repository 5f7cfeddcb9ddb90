// Package template makes the keys of requests from the templates that package key describes. An
// adapter has a [Grammar] with the sources of its requests. Compile reads the keys of a rule once,
// when the program starts, and returns a [Template], which makes the keys of each request.
package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// MaxValue is the largest number of bytes of an encoded value. A longer value is replaced by
	// its hash. A UUID, an e-mail address or a SHA-256 in hexadecimal stays legible.
	MaxValue = 64
	// MaxKey is the largest number of bytes of a key. MaxKey is 64 less than the length that a
	// Locker allows, so that the Locker can have a prefix.
	MaxKey = 448
)

// Reserved is the prefix of the names of latchkit's own data.
const Reserved = "latchkit:"

// A Grammar defines the parts of keys for requests of type T. Its zero value knows no parts, only
// literal text.
type Grammar[T any] struct {
	// Sources are the possible first words of a part.
	Sources map[string]Source[T]
	// Secret is the key of the HMAC for parts that end with |hmac: at least 16 random bytes, the
	// same in all processes.
	Secret []byte
}

// A Source is a kind of part.
type Source[T any] struct {
	// Noun names a part in errors: "header" for `the request lacks the header "X-Tenant"`.
	Noun string
	// Alone means that a part of this kind is written {source}, without a name.
	Alone bool
	// Bind returns the function that reads the part with this name. If Bind returns an error, the
	// template is refused. The error explains what to write instead.
	Bind func(name string) (Read[T], error)
	// BindAll does what Bind does for a name with the step "*", such as items.*.sku. Such a part
	// has several values. If BindAll is nil, the source has no such parts, and "*" is an ordinary
	// name.
	BindAll func(name string) (ReadAll[T], error)
}

// A Read returns a value of a request, or "" if the request has none. An error means that the
// request has an unusable value. The [Error] of the Template wraps this error.
type Read[T any] func(ctx context.Context, request T) (string, error)

// A ReadAll returns the values of a request. An empty value makes the request invalid. The Template
// may change the slice.
type ReadAll[T any] func(ctx context.Context, request T) ([]string, error)

// Compile reads the keys of one rule. There must be at least one key. The error explains what is
// wrong and what to write instead.
func (g Grammar[T]) Compile(keys ...Key) (*Template[T], error) {
	if len(keys) == 0 {
		return nil, errors.New("there is no key; name what is locked, such as \"order\" and a part")
	}
	t := &Template[T]{lines: make([]line[T], len(keys))}
	if g.Secret != nil {
		if len(g.Secret) < minSecret {
			return nil, fmt.Errorf("the secret has %d bytes; give at least %d random ones, or none", len(g.Secret), minSecret)
		}
		t.mac = newMAC(g.Secret)
	}
	for i, k := range keys {
		if slices.Contains(keys[:i], k) {
			return nil, fmt.Errorf("the rule has the key %q twice; keep one", k)
		}
		t.lines[i] = line[T]{text: k, name: "lock", many: -1}
		if err := g.parse(&t.lines[i]); err != nil {
			return nil, fmt.Errorf("the key %q %w", k, err)
		}
	}
	return t, nil
}

// parse splits the text of l into parts. It requires a ':' between two parts. An encoded value has
// no ':', so different values make different keys.
func (g Grammar[T]) parse(l *line[T]) error {
	const braces = "write parts as {SOURCE.NAME}, and leave braces out of literal text"
	text := string(l.text)
	rest, longest := text, len(text)
	for {
		before, inner, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return fmt.Errorf("has a '}' without a '{'; %s", braces)
		}
		if name, _, ok := strings.Cut(before, ":"); ok && name != "" && len(l.parts) == 0 {
			l.name = name
		}
		if !found {
			l.tail = before
			break
		}
		if len(l.parts) > 0 && !strings.Contains(before, ":") {
			return fmt.Errorf("has no ':' between two parts; without one, different values could make the same key")
		}
		content, after, closed := strings.Cut(inner, "}")
		if !closed {
			return fmt.Errorf("has a '{' without a '}'; %s", braces)
		}
		p, err := g.part(content)
		if err != nil {
			return err
		}
		if p.ref.Several {
			if l.many >= 0 {
				return fmt.Errorf("has two parts that stand for several values; write one key for each of them")
			}
			l.many = len(l.parts)
		}
		p.prefix, p.ref.Key = before, l.text
		l.parts = append(l.parts, p)
		longest += MaxValue - len(content) - 2
		rest = after
	}
	switch {
	case text == "":
		return fmt.Errorf("is empty; name what is locked, such as \"order\" and a part")
	case strings.HasPrefix(text, Reserved):
		return fmt.Errorf("starts with %q, which is reserved for the locks' own data; choose another beginning", Reserved)
	case longest > MaxKey:
		return fmt.Errorf("can become %d bytes long, and at most %d are allowed; use fewer parts, at most %d bytes each, or less text",
			longest, MaxKey, MaxValue)
	}
	return nil
}

// part parses content, the text between two braces, and binds the part to its source.
func (g Grammar[T]) part(content string) (p part[T], err error) {
	inner, filterText, _ := strings.Cut(content, "|")
	word, name, dotted := strings.Cut(inner, ".")
	name = unquote.Replace(name)
	source, known := g.Sources[word]
	switch {
	case inner == "" && filterText != "":
		return p, fmt.Errorf("has the filter |%s without a part; write %s", filterText, g.forms("NAME"))
	case !known && !dotted && word != "" && !strings.ContainsAny(word, "{%"):
		return p, fmt.Errorf("has the part {%s}; write %s", content, g.forms(word))
	case !known:
		return p, fmt.Errorf("has the part {%s}; write %s", content, g.forms("NAME"))
	case source.Alone && inner != word:
		return p, fmt.Errorf("has the part {%s}; write {%s}, which takes no name", content, word)
	case !source.Alone && name == "":
		return p, fmt.Errorf("has the part {%s}; write {%s.NAME}", content, word)
	}
	p = part[T]{ref: Ref{Source: word, Name: name, Filters: filterText}, noun: cmp.Or(source.Noun, word)}
	if p.filters, p.ref.HMAC, err = parseFilters(filterText); err != nil {
		return p, fmt.Errorf("has the part {%s}: it %w", content, err)
	}
	if p.ref.HMAC && g.Secret == nil {
		return p, fmt.Errorf("has the part {%s} and there is no secret for its HMAC; give a secret", content)
	}
	if source.BindAll != nil && slices.Contains(strings.Split(name, "."), several) {
		p.ref.Several = true
		p.readAll, err = source.BindAll(name)
	} else {
		p.read, err = source.Bind(name)
	}
	if err != nil {
		return p, fmt.Errorf("has the part {%s}: %w", content, err)
	}
	return p, nil
}

// several is the step of a part's name that stands for all elements of a list.
const several = "*"

// forms lists the valid forms of a part with this name, for errors.
func (g Grammar[T]) forms(name string) string {
	var forms []string
	for _, word := range slices.Sorted(maps.Keys(g.Sources)) {
		if g.Sources[word].Alone {
			forms = append(forms, "{"+word+"}")
		} else {
			forms = append(forms, "{"+word+"."+name+"}")
		}
	}
	switch n := len(forms); n {
	case 0:
		return "literal text only, there are no parts here"
	case 1:
		return forms[0]
	default:
		return strings.Join(forms[:n-1], ", ") + " or " + forms[n-1]
	}
}
