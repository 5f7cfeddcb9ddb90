package ginlock_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/locker"
)

// keyOf returns the key that template makes of a request with these two values, "" when it is refused.
func keyOf(t testing.TB, template, param, query string) string {
	t.Helper()
	key := ""
	l := lockerFunc(func(r locker.Rule) error {
		key = r.Key
		return locker.ErrBusy
	})
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?"+url.Values{"q": {query}}.Encode(), http.NoBody)
	c.Request.Header.Set("X-Tenant", "acme")
	c.Params = gin.Params{{Key: "p", Value: param}}
	ginlock.New(l, template)(c)
	return key
}

func TestKeysAreEncoded(t *testing.T) {
	long := strings.Repeat("x", 101)
	hash := fmt.Sprintf("~%x", sha256.Sum256([]byte(long)))
	colons := strings.Repeat(":", 34) // 102 bytes when encoded
	for _, tc := range []struct{ template, param, query, want string }{
		{"order:{param.p}", "42", "", "order:42"},
		{"order:{param.p}:{query.q}", "42", "7", "order:42:7"},
		{"{header.x-tenant}:order:{param.p}:v1", "42", "", "acme:order:42:v1"},
		{"a{param.p}b:c{query.q}d", "1", "2", "a1b:c2d"},
		{"order:{param.p}", "a:b{c}d%e\x00\n\x7f", "", "order:a%3Ab%7Bc%7Dd%25e%00%0A%7F"},
		{"order:{param.p}", "~home~", "", "order:%7Ehome~"},
		{"order:{param.p}", "Zoë /x", "", "order:Zoë /x"},
		{"order:{param.p}", long[:100], "", "order:" + long[:100]},
		{"order:{param.p}", long, "", "order:" + hash},
		{"order:{param.p}", colons, "", fmt.Sprintf("order:~%x", sha256.Sum256([]byte(colons)))},
		{"order:{param.p}", hash, "", "order:%7E" + hash[1:]},
		{"nightly", "", "", "nightly"},
		{"order:{param.p}", "", "", ""},
		{"order:{param.p}:{query.q}", "42", "", ""},
	} {
		if got := keyOf(t, tc.template, tc.param, tc.query); got != tc.want {
			t.Errorf("%q of %q and %q is %q, want %q", tc.template, tc.param, tc.query, got, tc.want)
		}
	}
}

func TestTemplatesThatCannotBeMeantAreRefused(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	for template, says := range map[string]string{
		"order:{param.id":               "has a '{' without a '}'",
		"order:param.id}":               "has a '}' without a '{'",
		"order:{param.id}}":             "has a '}' without a '{'",
		"order:{}":                      "has the part {}; write",
		"order:{id}":                    "has the part {id}; write {param.NAME}",
		"order:{param.}":                "has the part {param.}",
		"order:{body.id}":               "has the part {body.id}",
		"{param.a}{param.b}":            "has no ':' between two parts",
		"{param.a}-{param.b}":           "has no ':' between two parts",
		"latchkit:{param.a}":            "is kept for the locks' own data",
		strings.Repeat("x", 513):        "can become 513 bytes long",
		strings.Repeat(":{param.a}", 6): "can become 606 bytes long, 512 are allowed",
	} {
		if got := panics(func() { ginlock.New(l, template) }); !strings.Contains(got, says) {
			t.Errorf("%q: %q, want %q", template, got, says)
		}
	}
	for _, template := range []string{"order", "a:{query.user.id}", "a:{query.a:b}", strings.Repeat(":{param.a}", 5)} {
		if got := panics(func() { ginlock.New(l, template) }); got != "<nil>" {
			t.Errorf("%q: %q", template, got)
		}
	}
}

// Two requests have the same key only if they have the same values: otherwise a client could lock, or wait for, what
// belongs to another.
func FuzzKeysAreInjective(f *testing.F) {
	long := strings.Repeat("x", 120)
	for _, s := range [][4]string{
		{"a:b", "c", "a", "b:c"}, {"a%3Ab", "c", "a:b", "c"}, {"~" + fmt.Sprintf("%x", sha256.Sum256([]byte(long))), "c", long, "c"},
		{"{a}", "b", "%7Ba%7D", "b"}, {"a", "a:", "a:", "a"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	f.Fuzz(func(t *testing.T, p1, q1, p2, q2 string) {
		for _, template := range []string{"t:{param.p}:{query.q}", "{param.p}:{query.q}", "t{param.p}~:~{query.q}t"} {
			k1, k2 := keyOf(t, template, p1, q1), keyOf(t, template, p2, q2)
			if k1 == "" || k2 == "" {
				continue // refused
			}
			if (k1 == k2) != (p1 == p2 && q1 == q2) {
				t.Errorf("%q: (%q, %q) is %q, (%q, %q) is %q", template, p1, q1, k1, p2, q2, k2)
			}
			for _, k := range []string{k1, k2} {
				if len(k) > 512 || strings.ContainsAny(k, "{}\x00\r\n\x7f") || strings.Count(k, ":") != strings.Count(template, ":") {
					t.Errorf("%q made the key %q", template, k)
				}
			}
		}
	})
}
