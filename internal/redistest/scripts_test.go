package redistest

import (
	"strings"
	"testing"
)

const (
	fragmentLua = "-- part.lua: count.\n--\n-- fragment: count(ttl)\n-- KEYS: lease L · counter C\n-- returns: nothing\n"
	plainLua    = "-- plain.lua: take it.\n--\n-- KEYS: lease L · [done mark\n--       D]\n-- ARGV: none\nreturn 1\n"
	someLua     = "-- some.lua: take them.\n--\n-- KEYS: for each lease: lease L · [queue Q]\n-- ARGV: for each lease: token · ttl\nreturn 1\n"
	manyLua     = "-- many.lua: take them.\n--\n-- KEYS: leases L1 … Ln\n-- ARGV: for each lease: token · ttl\nreturn 1\n"
)

func TestScriptCallsMatchTheirHeaders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		keys int
		argv int
		want string
	}{
		{plainLua, 1, 0, ""},
		{fragmentLua + plainLua, 2, 0, ""},
		{fragmentLua + plainLua, 3, 0, "3 KEYS and 0 ARGV, but its header lists 1 to 2 and 0"},
		{plainLua, 0, 0, "0 KEYS"},
		{plainLua, 1, 1, "1 ARGV"},
		{manyLua, 3, 6, ""},
		{manyLua, 3, 5, "3 KEYS and 5 ARGV, but its header lists 1 for each lease and 2 for each lease"},
		{someLua, 2, 4, ""},
		{someLua, 4, 4, ""},
		{someLua, 3, 4, "3 KEYS and 4 ARGV, but its header lists 1 to 2 for each lease and 2 for each lease"},
		{someLua, 6, 4, "6 KEYS"},
		{"return 1", 3, 5, ""},
	} {
		words := append([]any{"eval", c.text, c.keys}, make([]any, c.keys+c.argv)...)
		if got := badCall(words); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%.20q with %d KEYS and %d ARGV: got %q, want %q", c.text, c.keys, c.argv, got, c.want)
		}
	}
}

func TestScriptCallsBySHAMatchTheirHeaders(t *testing.T) {
	t.Parallel()
	const text = plainLua + "-- by its SHA-1\n"
	const sum = "sum of the text" // any text is right here, because badCall looks it up in headers
	h := header{text: text}
	h.keys, h.argv, h.ok = Counts(text)
	headers.Store(sum, h)
	if got := badCall([]any{"evalsha", sum, 1, "L", "surplus"}); !strings.Contains(got, "1 ARGV") {
		t.Errorf("a surplus argument was not found: %q", got)
	}
	if got := badCall([]any{"evalsha", "unknown", 1, "L", "surplus"}); got != "" {
		t.Errorf("an unknown script was checked: %q", got)
	}
}
