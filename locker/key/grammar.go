package key

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// MaxValue is how many bytes an encoded value may have before its hash takes its place: a UUID, an e-mail address or a
	// SHA-256 in hexadecimal stays legible.
	MaxValue = 64
	// MaxKey is how many bytes a key can have: 64 fewer than a Locker allows, for its prefix.
	MaxKey = 448
)

// reserved begins the names of the locks' own data.
const reserved = "latchkit:"

// A Grammar says of what the keys of requests of type T can be made. Its zero value knows no parts, only literal text.
type Grammar[T any] struct {
	// Sources are the words with which a part may begin.
	Sources map[string]Source[T]
	// Secret is the key of the HMAC for parts that end with |hmac: at least 16 random bytes, the same in all processes.
	Secret []byte
}

// A Source is a kind of part.
type Source[T any] struct {
	// Noun is what a part is called when it is missing: "header" for `the header "X-Tenant"`.
	Noun string
	// Alone: a part is {source}, without a name.
	Alone bool
	// Bind returns how the part called name is read. Its error refuses the template; it says what to write instead.
	Bind func(name string) (Read[T], error)
}

// A Read returns a value of a request, "" when the request has none. Its error, for what is there and cannot be used, is
// found in the [Error] that the Template returns.
type Read[T any] func(ctx context.Context, in T) (string, error)

// Via makes the Sources of U serve for T, in which a U is found by of.
func Via[T, U any](of func(T) U, sources map[string]Source[U]) map[string]Source[T] {
	via := make(map[string]Source[T], len(sources))
	for word, s := range sources {
		via[word] = Source[T]{Noun: s.Noun, Alone: s.Alone, Bind: func(name string) (Read[T], error) {
			read, err := s.Bind(name)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, in T) (string, error) { return read(ctx, of(in)) }, nil
		}}
	}
	return via
}

// Compile reads k. Its error says what is wrong and what to write instead.
func (g Grammar[T]) Compile(k Key) (*Template[T], error) {
	t := &Template[T]{text: k, name: "lock"}
	if g.Secret != nil {
		if len(g.Secret) < minSecret {
			return nil, fmt.Errorf("the secret has %d bytes; give at least %d random ones, or none", len(g.Secret), minSecret)
		}
		t.mac = newMAC(g.Secret)
	}
	if err := g.parse(t, string(k)); err != nil {
		return nil, fmt.Errorf("the key %q %w", k, err)
	}
	return t, nil
}

// parse takes text apart. Between two parts it wants a ':', which no encoded value has: so the values can be read back from
// a key, and different ones make different keys.
func (g Grammar[T]) parse(t *Template[T], text string) error {
	const braces = "write parts as {SOURCE.NAME}, and leave braces out of literal text"
	rest, longest := text, len(text)
	for {
		before, inner, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return fmt.Errorf("has a '}' without a '{'; %s", braces)
		}
		if name, _, ok := strings.Cut(before, ":"); ok && name != "" && len(t.parts) == 0 {
			t.name = name
		}
		if !found {
			t.tail = before
			break
		}
		if len(t.parts) > 0 && !strings.Contains(before, ":") {
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
		p.before = before
		t.parts = append(t.parts, p)
		longest += MaxValue - len(content) - 2
		rest = after
	}
	switch {
	case text == "":
		return fmt.Errorf("is empty; name what is to be locked, such as \"order\" and a part")
	case strings.HasPrefix(text, reserved):
		return fmt.Errorf("starts with %q, which is kept for the locks' own data; choose another beginning", reserved)
	case longest > MaxKey:
		return fmt.Errorf("can become %d bytes long, %d are allowed; use fewer parts, at most %d bytes each, or less text", longest, MaxKey, MaxValue)
	}
	return nil
}

// part binds what stands between braces.
func (g Grammar[T]) part(content string) (p part[T], err error) {
	inner, private := strings.CutSuffix(content, hmacMark)
	if private && g.Secret == nil {
		return p, fmt.Errorf("has the part {%s} and there is no secret for its HMAC; give one", content)
	}
	word, name, _ := strings.Cut(inner, ".")
	name = unquote.Replace(name)
	source, known := g.Sources[word]
	switch {
	case !known || strings.Contains(inner, "|"):
		return p, fmt.Errorf("has the part {%s}; write %s", content, g.forms())
	case source.Alone && inner != word:
		return p, fmt.Errorf("has the part {%s}; write {%s}, it has no name", content, word)
	case !source.Alone && name == "":
		return p, fmt.Errorf("has the part {%s}; write {%s.NAME}", content, word)
	}
	p = part[T]{ref: Ref{Source: word, Name: name, HMAC: private}, noun: cmp.Or(source.Noun, word)}
	if p.read, err = source.Bind(name); err != nil {
		return p, fmt.Errorf("has the part {%s}: %w", content, err)
	}
	return p, nil
}

// forms lists what a part may be.
func (g Grammar[T]) forms() string {
	var forms []string
	for _, word := range slices.Sorted(maps.Keys(g.Sources)) {
		if g.Sources[word].Alone {
			forms = append(forms, "{"+word+"}")
		} else {
			forms = append(forms, "{"+word+".NAME}")
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
