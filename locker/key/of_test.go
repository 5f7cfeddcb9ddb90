package key_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/locker/key"
)

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
			in[fmt.Sprint(i)], _ = key.Format(value)
		}
		if same, err := compile(t, key.Key(text), nil).Key(t.Context(), in); err != nil || same != tc.want {
			t.Errorf("the template %q makes %q, %v", text, same, err)
		}
	}
}

// If a key cannot be made, Of returns "". Every Locker refuses this key, so a mistake never leads
// to one lock that all callers share.
func TestAKeyThatCannotBeMadeIsEmpty(t *testing.T) {
	for says, of := range map[string][]any{
		"value 2 of \"order\": it is missing or empty":                            {"order", "a", nil},
		"value 1 of \"order\": a []string is not a string, a number or a boolean": {"order", []string{"a"}},
		"the name is empty; say what is locked":                                   {"", "a"},
		"the name \"order{x}\" has a brace":                                       {"order{x}", "a"},
		"has 513 bytes, and at most 448 are allowed":                              {strings.Repeat("x", 513)},
	} {
		name, _ := of[0].(string)
		if got := key.Of(name, of[1:]...); got != "" {
			t.Errorf("%v: %q", of, got)
		}
		if _, err := key.Make(name, of[1:]...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %s", of, err, says)
		}
	}
}
