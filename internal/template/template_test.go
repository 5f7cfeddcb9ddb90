package template_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker/key"
)

// request has the values from which the keys in these tests are made.
type request map[string]string

var errTorn = errors.New("the page is torn")

// grammar returns a Grammar with the parts {field.NAME}, {list.NAME}, {who} and {torn}.
func grammar(secret []byte) template.Grammar[request] {
	return template.Grammar[request]{Secret: secret, Sources: map[string]template.Source[request]{
		"field": {Noun: "form field", Bind: func(name string) (template.Read[request], error) {
			if name == "forbidden" {
				return nil, errors.New("nobody may lock on that; write {field.id}")
			}
			return func(_ context.Context, r request) (string, error) { return r[name], nil }, nil
		}},
		"who": {Alone: true, Bind: func(string) (template.Read[request], error) {
			return func(context.Context, request) (string, error) { return "ann", nil }, nil
		}},
		"list": {
			Noun: "list",
			Bind: func(name string) (template.Read[request], error) {
				return func(_ context.Context, r request) (string, error) { return r[name], nil }, nil
			},
			BindAll: func(name string) (template.ReadAll[request], error) {
				return func(_ context.Context, r request) ([]string, error) {
					if r[name] == "torn" {
						return nil, errTorn
					}
					if r[name] == "" {
						return nil, nil
					}
					return strings.Split(r[name], ","), nil
				}, nil
			},
		},
		"torn": {Noun: "page", Alone: true, Bind: func(string) (template.Read[request], error) {
			return func(context.Context, request) (string, error) { return "", errTorn }, nil
		}},
	}}
}

func compile(t testing.TB, k template.Key, secret []byte) *template.Template[request] {
	t.Helper()
	compiled, err := grammar(secret).Compile(k)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func hashed(sum []byte) string { return "~" + base64.RawURLEncoding.EncodeToString(sum) }

func sha(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hashed(sum[:])
}

// These keys must never change, because another version of latchkit, or another program, makes the
// same keys.
func TestKeysAreEncoded(t *testing.T) {
	long := strings.Repeat("x", template.MaxValue+1)
	colons := strings.Repeat(":", 22) // 66 bytes when the colons are encoded
	for _, tc := range []struct {
		key  template.Key
		a, b string
		want string
	}{
		{"order:{field.a}", "42", "", "order:42"},
		{"order:{field.a}:{field.b}", "42", "7", "order:42:7"},
		{"{who}:order:{field.a}:v1", "42", "", "ann:order:42:v1"},
		{"a{field.a}b:c{field.b}d", "1", "2", "a1b:c2d"},
		{"order:{field.a}", "a:b{c}d%e\x00\n\x7f", "", "order:a%3Ab%7Bc%7Dd%25e%00%0A%7F"},
		{"order:{field.a}", "~home~", "", "order:%7Ehome~"},
		{"order:{field.a}", "Zoë /x|y", "", "order:Zoë /x|y"},
		{"order:{field.a}", long[1:], "", "order:" + long[1:]},
		{"order:{field.a}", long, "", "order:" + sha(long)},
		{"order:{field.a}", colons, "", "order:" + sha(colons)},
		{"order:{field.a}", sha(long), "", "order:%7E" + sha(long)[1:]},
		{"nightly", "", "", "nightly"},
	} {
		got, err := compile(t, tc.key, nil).Key(t.Context(), request{"a": tc.a, "b": tc.b})
		if err != nil || got != tc.want {
			t.Errorf("%q of %q and %q is %q, %v, want %q", tc.key, tc.a, tc.b, got, err, tc.want)
		}
	}
}

func TestAPrivatePartIsSeenAsItsHMAC(t *testing.T) {
	secret := []byte("0123456789abcdef")
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("ann@example.org"))
	compiled := compile(t, "mailbox:{field.mail|hmac}:{field.box}", secret)
	secret[0] = 'x' // the caller may change its slice after the call
	for range 2 {
		got, err := compiled.Key(t.Context(), request{"mail": "ann@example.org", "box": "in"})
		if want := "mailbox:" + hashed(mac.Sum(nil)) + ":in"; err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if refs := compiled.Parts(); len(refs) != 2 || refs[0] != (template.Ref{Key: "mailbox:{field.mail|hmac}:{field.box}", Source: "field", Name: "mail", Filters: "hmac", HMAC: true}) {
		t.Errorf("%+v", refs)
	}
}

// A part may be read from a large body.
func TestAPartIsReadOnceForAllKeys(t *testing.T) {
	g, reads := grammar(nil), 0
	g.Sources["who"] = template.Source[request]{Alone: true, Bind: func(string) (template.Read[request], error) {
		return func(context.Context, request) (string, error) { reads++; return "ann", nil }, nil
	}}
	compiled, err := g.Compile("{who}:{list.*}")
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := compiled.Keys(t.Context(), request{"*": "b,a"}); err != nil || !slices.Equal(keys, []string{"ann:a", "ann:b"}) || reads != 1 {
		t.Errorf("%q, %v, %d reads", keys, err, reads)
	}
}

func TestTypedPartsAreTheSameAsTheText(t *testing.T) {
	for _, tc := range []struct{ got, want template.Key }{
		{template.Join("order", template.Part("field", "id")), "order:{field.id}"},
		{template.Join(template.Part("who", ""), template.Part("field", "mail")), "{who}:{field.mail}"},
		{template.Join("order", template.Part("field", "a}|{%25b")), "order:{field.a%7D%7C%7B%2525b}"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
	odd := "a}|{%25b" // a name with bytes that have a meaning in a template
	got, err := compile(t, template.Join("order", template.Part("field", odd)), nil).Key(t.Context(), request{odd: "42"})
	if err != nil || got != "order:42" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAPartThatIsEmptyOrUnusableIsNamed(t *testing.T) {
	for k, says := range map[template.Key]string{
		"order:{field.id}":           `the request lacks the form field "id"`,
		"order:{field.id|hmac}":      `the request lacks the form field "id"`,
		"order:{who}:{field.id}:new": `the request lacks the form field "id"`,
		"order:{torn}":               `the page is not usable: the page is torn`,
	} {
		_, err := compile(t, k, []byte("0123456789abcdef")).Key(t.Context(), request{"other": "secret value"})
		if err == nil || err.Error() != says {
			t.Errorf("%s: %v, want %s", k, err, says)
		}
		want := template.ErrMissing
		if strings.Contains(string(k), "torn") {
			want = errTorn
		}
		if e, ok := errors.AsType[*template.Error](err); !ok || !errors.Is(err, want) || e.Part.Source == "" {
			t.Errorf("%s: %#v", k, err)
		}
	}
}

func TestTemplatesThatCannotBeMeantAreRefused(t *testing.T) {
	for k, says := range map[template.Key]string{
		"":                                     "is empty; name what is locked",
		"order:{field.id":                      "has a '{' without a '}'",
		"order:field.id}":                      "has a '}' without a '{'",
		"{{order}}:{field.id}":                 "has the part {{order}; write {field.NAME}, {list.NAME}, {torn} or {who}",
		"order:{id}":                           "has the part {id}; write {field.id}, {list.id}, {torn} or {who}",
		"order:{who.else}":                     "has the part {who.else}; write {who}, which takes no name",
		"order:{field.id|md5}":                 "has the filter |md5, which is unknown or in the wrong place; write |int,",
		"order:{field.id|hmac|int}":            "has the filter |hmac, which is unknown or in the wrong place",
		"order:{field.id|hmac}":                "there is no secret for its HMAC",
		"order:{field.forbidden}":              "has the part {field.forbidden}: nobody may lock on that",
		"order{|hmac}":                         "has the filter |hmac without a part",
		"{field.a}{field.b}":                   "has no ':' between two parts",
		"latchkit:{field.a}":                   "is reserved for the locks' own data",
		template.Key(strings.Repeat("x", 449)): "can become 449 bytes long, and at most 448 are allowed",
		"a:{list.x.*}:{list.y.*}":              "has two parts that stand for several values",
	} {
		if _, err := grammar(nil).Compile(k); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", k, err, says)
		}
	}
	if _, err := grammar([]byte("short")).Compile("order"); err == nil || !strings.Contains(err.Error(), "the secret has 5 bytes; give at least 16 random ones") {
		t.Error(err)
	}
	if _, err := (template.Grammar[request]{}).Compile("order:{who}"); err == nil || !strings.Contains(err.Error(), "literal text only") {
		t.Error(err)
	}
	for _, k := range []template.Key{"order", "a:{field.user.id}", "a:{field.a:b}", template.Key(strings.Repeat(":{who}", 6))} {
		if _, err := grammar(nil).Compile(k); err != nil {
			t.Error(err)
		}
	}
}

func TestTheNameIsTheProgramsOwnText(t *testing.T) {
	for k, want := range map[template.Key]string{
		"order:{field.id}": "order", "order:all:{field.id}": "order", "{field.id}:order": "lock", "nightly": "lock", ":{who}": "lock", "a{who}:b": "lock",
	} {
		if got := compile(t, k, nil).Name(); got != want {
			t.Errorf("%q: %q, want %q", k, got, want)
		}
	}
}

type celsius int

func (c celsius) String() string { return fmt.Sprintf("%d°", int(c)) }

func TestAValueHasOneText(t *testing.T) {
	for _, tc := range []struct {
		value any
		want  string
	}{
		{nil, ""}, {"a", "a"}, {true, "true"}, {celsius(7), "7°"},
		{42, "42"}, {int32(-42), "-42"}, {int64(math.MinInt64), "-9223372036854775808"}, {uint(42), "42"}, {uint32(42), "42"}, {uint64(math.MaxUint64), "18446744073709551615"},
		{42.0, "42"}, {float32(42), "42"}, {-0.5, "-0.5"}, {math.Copysign(0, -1), "0"},
		{json.Number("42"), "42"}, {json.Number("42.0"), "42"}, {json.Number("4.2e1"), "42"}, {json.Number("-0"), "0"}, {json.Number("-0.0"), "0"},
		{json.Number("0.50"), "0.5"}, {json.Number("123456789012345678901234567890"), "123456789012345678901234567890"},
	} {
		if got, err := template.Format(tc.value); err != nil || got != tc.want {
			t.Errorf("%T %v is %q, %v, want %q", tc.value, tc.value, got, err, tc.want)
		}
	}
	for _, value := range []any{[]string{"a"}, map[string]any{}, struct{}{}, math.NaN(), math.Inf(1), 1e300, json.Number("1e300"), json.Number("1e999"), json.Number("9007199254740993.0")} {
		if got, err := template.Format(value); err == nil {
			t.Errorf("%T %v is %q", value, value, got)
		}
	}
}

// Two requests have the same key only if they have the same values. Otherwise a client could lock
// the key of another client, or wait for this key.
func FuzzKeysAreInjective(f *testing.F) {
	long := strings.Repeat("x", 120)
	for _, s := range [][4]string{
		{"a:b", "c", "a", "b:c"}, {"a%3Ab", "c", "a:b", "c"}, {sha(long), "c", long, "c"}, {"{a}", "b", "%7Ba%7D", "b"}, {"a", "a:", "a:", "a"},
		{long, "c", long[:64], "c"}, {"~", "~", "%7E", "~"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	var templates []*template.Template[request]
	for _, k := range []template.Key{"t:{field.a}:{field.b}", "{field.a}:{field.b}", "t{field.a}~:~{field.b}t", "t:{field.a|hmac}:{field.b}"} {
		templates = append(templates, compile(f, k, bytes.Repeat([]byte("s"), 32)))
	}
	f.Fuzz(func(t *testing.T, a1, b1, a2, b2 string) {
		for _, compiled := range templates {
			k1, err1 := compiled.Key(t.Context(), request{"a": a1, "b": b1})
			k2, err2 := compiled.Key(t.Context(), request{"a": a2, "b": b2})
			if (err1 != nil) != (a1 == "" || b1 == "") {
				t.Errorf("%q and %q: %v", a1, b1, err1)
			}
			if err1 != nil || err2 != nil {
				continue
			}
			if (k1 == k2) != (a1 == a2 && b1 == b2) {
				t.Errorf("%q: (%q, %q) is %q, (%q, %q) is %q", compiled, a1, b1, k1, a2, b2, k2)
			}
			if len(k1) > template.MaxKey || strings.ContainsAny(k1, "{}\x00\r\n\x7f") || strings.Count(k1, ":") != strings.Count(compiled.String(), ":") {
				t.Errorf("%q made the key %q", compiled, k1)
			}
		}
	})
}

// FuzzCompile searches for texts on which Compile panics, or which Compile misunderstands.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{"order:{field.id}", "{who}", "{field.a|hmac}:b", "{", "}{", "a{|hmac}", "{field.%7D}", "{list.*|int}", "a:{field.a|lower|hmac}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		compiled, err := grammar(bytes.Repeat([]byte("s"), 16)).Compile(template.Key(text))
		if err != nil {
			return
		}
		full := make(request)
		for _, ref := range compiled.Parts() {
			full[ref.Name] = "v"
		}
		k, err := compiled.Key(t.Context(), full)
		if e, ok := errors.AsType[*template.Error](err); ok && !errors.Is(err, template.ErrMissing) && (errors.Is(err, errTorn) || e.Part.Filters != "") {
			return
		}
		if err != nil || k == "" || len(k) > template.MaxKey || strings.ContainsAny(k, "{}") || strings.HasPrefix(k, "latchkit:") {
			t.Errorf("%q made %q, %v", text, k, err)
		}
	})
}

// The same values must lead to the same key in Of and in a route's template.
func TestAKeyMadeByHandIsThatOfATemplate(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values []any
		want   string
	}{
		{"order", []any{"acme", 42}, "order:acme:42"},
		{"order", []any{"a:b", "c"}, "order:a%3Ab:c"},
		{"order", []any{"a", "b:c"}, "order:a:b%3Ac"},
		{"order:v1", []any{true, 1.0, int64(7)}, "order:v1:true:1:7"},
		{"nightly", nil, "nightly"},
		{"order", []any{strings.Repeat("x", 65)}, "order:" + sha(strings.Repeat("x", 65))},
	} {
		got, err := key.Make(tc.name, tc.values...)
		if err != nil || got != tc.want || key.Of(tc.name, tc.values...) != tc.want {
			t.Errorf("%v: %q, %v, want %q", tc.values, got, err, tc.want)
		}
		text, in := tc.name, make(request)
		for i, value := range tc.values {
			text += fmt.Sprintf(":{field.%d}", i)
			in[fmt.Sprint(i)], _ = template.Format(value)
		}
		if same, err := compile(t, template.Key(text), nil).Key(t.Context(), in); err != nil || same != tc.want {
			t.Errorf("the template %q makes %q, %v", text, same, err)
		}
	}
}
