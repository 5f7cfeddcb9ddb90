package template

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"sync"
)

// A Template makes the keys of requests of type T from the keys of one rule. A request locks all of
// its keys together. [Grammar.Compile] returns a Template. A Template is safe for concurrent use.
type Template[T any] struct {
	lines []line[T]
	mac   *mac // nil without a secret
}

// line is one Key of a rule.
type line[T any] struct {
	text  Key
	name  string
	parts []part[T]
	tail  string // literal text after the last part
	many  int    // the index of the part that stands for several values; -1: there is none
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
	Key          Key // the key of the rule to which the part belongs
	Source, Name string
	Filters      string // such as "int", or "lower|hmac"
	HMAC         bool   // the last filter is hmac
	Several      bool   // the part has several values in one request
}

// MaxKeys is the largest number of keys of a request.
const MaxKeys = 100

// String returns the texts of the keys, with a comma between two of them.
func (t *Template[T]) String() string {
	texts := make([]string, len(t.lines))
	for i := range t.lines {
		texts[i] = string(t.lines[i].text)
	}
	return strings.Join(texts, ", ")
}

// Name returns the literal text before the first ':' of the first key, or "lock" when there is
// none. It suits the Name of a Rule, because the text is fixed: no client can influence it.
func (t *Template[T]) Name() string { return t.lines[0].name }

// Parts returns the parts that the Template reads, in order.
func (t *Template[T]) Parts() []Ref {
	var refs []Ref
	for i := range t.lines {
		for _, p := range t.lines[i].parts {
			refs = append(refs, p.ref)
		}
	}
	return refs
}

// CheckSpelling returns an error if a key does not say how the identity in a part is spelled: a
// part for which chosen reports true has no filter, or only |hmac. The error shows the repaired
// key. Adapters call CheckSpelling for a rule with OnceFor, and chosen reports whether a client
// chooses the text of a part.
func (t *Template[T]) CheckSpelling(chosen func(Ref) bool) error {
	for i := range t.lines {
		l, repaired, bare := &t.lines[i], "", false
		for j := range l.parts {
			p := &l.parts[j]
			text := strings.Trim(string(Part(p.ref.Source, p.ref.Name)), "{}")
			if len(p.filters) == 0 && chosen(p.ref) {
				text, bare = text+"|int", true
			}
			if p.ref.Filters != "" {
				text += "|" + p.ref.Filters
			}
			repaired += p.prefix + "{" + text + "}"
		}
		if bare {
			return fmt.Errorf("the key %q does not say how an identity is spelled, and with OnceFor each spelling, such as 42, 042 and +42, "+
				"would do the work once; write %q for whole numbers, or in place of |int the filter |uuid, |lower, |nfc, "+
				"or |text for the text as it is", l.text, repaired+l.tail)
		}
	}
	return nil
}

// Several reports whether a request can have more than one key.
func (t *Template[T]) Several() bool { return len(t.lines) > 1 || t.lines[0].many >= 0 }

// Key returns the key of a request. The error is an [*Error] if a part is empty or cannot be read,
// or if the request has more than one key. ctx goes to the functions that read parts.
func (t *Template[T]) Key(ctx context.Context, request T) (string, error) {
	l := &t.lines[0]
	if t.Several() {
		keys, err := t.Keys(ctx, request)
		if err != nil {
			return "", err
		}
		switch {
		case len(keys) == 1:
			return keys[0], nil
		case l.many >= 0:
			return "", l.parts[l.many].fail(errSeveral)
		}
		return "", &Error{Noun: "list of keys", Err: errSeveral}
	}
	if len(l.parts) == 0 {
		return l.tail, nil
	}
	var room [128]byte
	var texts [maxParts]string
	key, err := l.append(room[:0], ctx, t.mac, request, &texts)
	return string(key), err
}

// Keys returns the keys of a request, sorted and without duplicates. There is at least one key, and
// there are at most [MaxKeys]. The error is an [*Error]. ctx goes to the functions that read parts.
func (t *Template[T]) Keys(ctx context.Context, request T) ([]string, error) {
	var all []string
	for i := range t.lines {
		l, values, texts := &t.lines[i], []string{""}, [maxParts]string{}
		if l.many >= 0 {
			var err error
			if values, err = l.values(ctx, request); err != nil {
				return nil, err
			}
		}
		for _, value := range values {
			if l.many >= 0 {
				texts[l.many] = value
			}
			key, err := l.append(nil, ctx, t.mac, request, &texts)
			if err != nil {
				return nil, err
			}
			all = append(all, string(key))
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > MaxKeys {
		return nil, &Error{Noun: "list of keys", Err: errTooMany}
	}
	return all, nil
}

// values returns the values of the part that stands for several values.
func (l *line[T]) values(ctx context.Context, request T) ([]string, error) {
	p := &l.parts[l.many]
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
	return values, nil
}

// maxParts is the largest number of parts of a key: see MaxKey.
const maxParts = MaxKey / MaxValue

// append appends the key of request to the bytes of key. texts has the value to use of a part that
// stands for several values. append reads the others into texts, unless they are there: to read a
// member of a large body again, for each of a hundred keys, would cost much.
func (l *line[T]) append(key []byte, ctx context.Context, m *mac, request T, texts *[maxParts]string) ([]byte, error) { //nolint:revive // key is what append adds to
	for i := range l.parts {
		p := &l.parts[i]
		if texts[i] == "" && i != l.many {
			var err error
			if texts[i], err = p.read(ctx, request); err != nil {
				return nil, p.fail(err)
			}
		}
		text := texts[i]
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
			key = m.appendSum(key, text)
		} else {
			key = AppendValue(key, text)
		}
	}
	return append(key, l.tail...), nil
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

// hashMark is the first byte of a hash. No encoded value begins with this byte.
const hashMark = '~'

// special marks the bytes of a value that are percent-encoded. These are the bytes with a meaning
// in keys, in hash tags and in this encoding. Control bytes are encoded too, because a terminal
// would obey them.
var special = func() (table [256]bool) {
	for b := range ' ' {
		table[b] = true
	}
	for _, b := range []byte{0x7f, ':', '{', '}', '%'} {
		table[b] = true
	}
	return table
}()

// AppendValue appends the encoded value to key, or its hash if the encoded value would be too long.
// Two different values never get the same encoding, apart from collisions of SHA-256.
func AppendValue(key []byte, value string) []byte {
	if len(value) <= MaxValue {
		start := len(key)
		for i := range len(value) {
			if b := value[i]; special[b] || b == hashMark && i == 0 {
				const digits = "0123456789ABCDEF"
				key = append(key, '%', digits[b>>4], digits[b&15])
			} else {
				key = append(key, b)
			}
		}
		if len(key)-start <= MaxValue {
			return key
		}
		key = key[:start]
	}
	sum := sha256.Sum256([]byte(value))
	return appendHash(key, sum[:])
}

// appendHash appends to key the text of the hash sum.
func appendHash(key, sum []byte) []byte {
	return base64.RawURLEncoding.AppendEncode(append(key, hashMark), sum)
}

// minSecret is the smallest length of a secret in bytes. A shorter secret is probably a word.
const minSecret = 16

// mac makes HMACs. It keeps its hash objects in a pool, to reuse them.
type mac struct{ states sync.Pool }

func newMAC(secret []byte) *mac {
	secret = append([]byte(nil), secret...)
	return &mac{states: sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}}
}

// appendSum appends to key the text of the HMAC of value.
func (m *mac) appendSum(key []byte, value string) []byte {
	state, _ := m.states.Get().(hash.Hash)
	defer m.states.Put(state)
	state.Reset()
	_, _ = state.Write([]byte(value)) // never fails
	var room [sha256.Size]byte
	return appendHash(key, state.Sum(room[:0]))
}
