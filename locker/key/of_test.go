package key_test

import (
	"strings"
	"testing"

	"github.com/latchkit/latchkit/locker/key"
)

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
