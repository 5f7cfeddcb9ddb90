package template_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/template"
)

func TestAPartWithAStarMakesAKeyForEachValue(t *testing.T) {
	compiled := compile(t, "stock:{field.shop}:{list.items.*|lower}", nil)
	if !compiled.Several() || !compiled.Parts()[1].Several || compiled.Parts()[0].Several {
		t.Errorf("%+v", compiled.Parts())
	}
	got, err := compiled.Keys(t.Context(), request{"shop": "a:b", "items.*": "pen,Book,pen,book,ink"})
	if want := []string{"stock:a%3Ab:book", "stock:a%3Ab:ink", "stock:a%3Ab:pen"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestSeveralKeysThatCannotBeMade(t *testing.T) {
	compiled := compile(t, "stock:{list.items.*|int}", nil)
	many := make([]string, template.MaxKeys+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for value, says := range map[string]string{
		"":                      `the request lacks the list "items.*"`,
		"1,,2":                  `the request lacks the list "items.*"`,
		"1,x":                   `the list "items.*" is not usable: it is not a whole number`,
		"torn":                  "the page is torn",
		strings.Join(many, ","): "a request can lock at most 100 keys",
	} {
		_, err := compiled.Keys(t.Context(), request{"items.*": value})
		if _, ok := errors.AsType[*template.Error](err); !ok || !strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v, want %s", value, err, says)
		}
	}
	if keys, err := compiled.Keys(t.Context(), request{"items.*": strings.Join(many[1:], ",")}); err != nil || len(keys) != template.MaxKeys {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

func TestTheKeysOfOneRule(t *testing.T) {
	g := grammar(nil)
	ts, err := g.Compile("stock:{list.items.*}", "cart:{field.cart}", "stock:{field.gift}")
	if err != nil {
		t.Fatal(err)
	}
	if ts.Name() != "stock" || !ts.Several() || len(ts.Parts()) != 3 {
		t.Errorf("%s, %v, %+v", ts.Name(), ts.Several(), ts.Parts())
	}
	got, err := ts.Keys(t.Context(), request{"items.*": "pen,ink", "cart": "7", "gift": "pen"})
	if want := []string{"cart:7", "stock:ink", "stock:pen"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := ts.Keys(t.Context(), request{"items.*": "pen", "gift": "x"}); !errors.Is(err, template.ErrMissing) {
		t.Error(err)
	}
	if one, err := g.Compile("cart:{field.cart}"); err != nil || one.Several() {
		t.Error(one, err)
	}
	for says, keys := range map[string][]template.Key{
		"there is no key": nil, "keep one": {"a", "b", "a"}, "is empty": {"a", ""},
	} {
		if _, err := g.Compile(keys...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %s", keys, err, says)
		}
	}
}

// A request that has several keys has no single key, whether one part stands for several values or
// the rule has several keys.
func TestSeveralKeysAreNotOne(t *testing.T) {
	list := compile(t, "stock:{list.items.*}", nil)
	if got, err := list.Key(t.Context(), request{"items.*": "pen"}); err != nil || got != "stock:pen" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := list.Key(t.Context(), request{"items.*": "pen,ink"}); err == nil || !strings.Contains(err.Error(), "stands for several values") {
		t.Errorf("%q, %v", got, err)
	}
	rule, err := grammar(nil).Compile("cart:{field.cart}", "stock:{field.gift}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rule.Key(t.Context(), request{"cart": "7", "gift": "pen"}); err == nil {
		t.Errorf("%q", got)
	}
}

func TestAStarIsANameWhereASourceHasNoLists(t *testing.T) {
	compiled := compile(t, "a:{field.x.*}", nil)
	if got, err := compiled.Key(t.Context(), request{"x.*": "7"}); err != nil || got != "a:7" || compiled.Several() {
		t.Errorf("%q, %v", got, err)
	}
}
