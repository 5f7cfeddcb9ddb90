package ginlock_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// asked returns a Locker that refuses every Rule, and records each Rule in rules.
func asked(rules *[]locker.Rule) locker.Locker {
	return lockerFunc(func(r locker.Rule) error {
		*rules = append(*rules, r)
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrBusy}
	})
}

func TestARuleGuardsItsRoute(t *testing.T) {
	var got []locker.Rule
	guard, err := ginlock.FromRules(asked(&got), httplock.Rules{
		"POST /orders/:id/pay": {Key: "order:{param.id|int}", Wait: 250 * time.Millisecond, TTL: 10 * time.Second, OnceFor: time.Hour, EndAfter: time.Minute, KeepFor: time.Second},
		"GET /articles/:slug":  {Key: "article:{param.slug}", Mode: locker.Shared, Name: "reading"},
		"get  /feed/*path":     {Key: "feed:{param.path}"},
	}, httplock.WithWait(locker.NoWait))
	if err != nil {
		t.Fatal(err)
	}
	e := gin.New()
	e.Use(guard.Handler())
	api := e.Group("/")
	api.POST("/orders/:id/pay", ok)
	api.POST("/orders/:id/ship", ok)
	api.GET("/articles/:slug", ok)
	api.GET("/feed/*path", ok)
	if err := guard.Validate(e.Routes()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		method, path string
		code         int
		want         *locker.Rule
	}{
		{"POST", "/orders/42/pay", 409, &locker.Rule{Key: "order:42", Name: "order", Wait: 250 * time.Millisecond, TTL: 10 * time.Second, OnceFor: time.Hour, EndAfter: time.Minute, KeepFor: time.Second}},
		{"POST", "/orders/42/ship", 200, nil},
		{"POST", "/nowhere", 404, nil},
		{"GET", "/articles/go", 409, &locker.Rule{Key: "article:go", Name: "reading", Mode: locker.Shared, Wait: locker.NoWait}},
		{"GET", "/feed/a", 409, &locker.Rule{Key: "feed:/a", Name: "feed", Wait: locker.NoWait}},
	} {
		got = nil
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, http.NoBody))
		if w.Code != tc.code || len(got) > 1 || (len(got) == 1) != (tc.want != nil) || tc.want != nil && got[0] != *tc.want {
			t.Errorf("%s %s: %d, %+v, want %d, %+v", tc.method, tc.path, w.Code, got, tc.code, tc.want)
		}
	}
}

func TestRulesThatCannotBeMeantAreNamed(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	_, err := ginlock.FromRules(l, httplock.Rules{
		"POST /a/:id":    {Key: "a:{param.id}"},
		"post /a/:id":    {Key: "a:{param.id}"},
		"POST /b/:id":    {Key: "b:{param.number}"},
		"POST /c":        {Key: "c:{param.id}"},
		"GET /d/:id":     {Key: "d:{body.id}"},
		"POST /e":        {},
		"POST /f":        {Key: "f:{nothing}"},
		"/g":             {Key: "g"},
		"POST /h":        {Key: "h", Wait: -time.Second},
		"POST /j":        {Key: "j", OnceFor: time.Microsecond},
		"POST /k":        {Key: "k", Mode: 7},
		"POST /l/:a/:b":  {Key: "l:{param.c}"},
		"POST /m/{id}/n": {Key: "m:{param.id}"},
		"POST /fine/:x":  {Key: "fine:{param.x}:{body.y}"},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`rule "post /a/:id": the route is the same as in rule "POST /a/:id"; keep one of the two`,
		`rule "POST /b/:id": its key "b:{param.number}" has {param.number}, and the path has only id`,
		`rule "POST /c": its key "c:{param.id}" has {param.id}, and the path has no parameters`,
		`rule "GET /d/:id": its key "d:{body.id}" reads the body, and a GET request has no body; take {param.NAME}`,
		`rule "POST /e": the rule has no Key; name what the route changes`,
		`rule "POST /f": the key "f:{nothing}" has the part {nothing}; write`,
		`rule "/g": the name is not a route; write method and path`,
		`rule "POST /h": WithWait(-1s): give a positive time`,
		`rule "POST /j": its OnceFor is 1µs; give at least 1ms`,
		`rule "POST /k": its Mode 7 is neither Exclusive nor Shared`,
		`rule "POST /l/:a/:b": its key "l:{param.c}" has {param.c}, and the path has only a, b`,
		`rule "POST /m/{id}/n": its key "m:{param.id}" has {param.id}, and the path has no parameters; write the path as /m/:id/n`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "rule \"") - 1; n != 12 || strings.Contains(err.Error(), "fine") { // one error also contains another rule's name
		t.Errorf("%d rules in\n%v", n, err)
	}
	if _, err := ginlock.FromRules(nil, httplock.Rules{"POST /a": {Key: "a"}}); err == nil || !strings.Contains(err.Error(), "the Locker is nil") {
		t.Error(err)
	}
}

func TestARuleWithoutARouteIsFoundAtStartUp(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	e := gin.New()
	e.POST("/orders/:id/pay", ok)
	e.PUT("/articles/:slug", ok)
	for route, says := range map[string]string{
		"POST /orders/:order/pay": `ginlock: rule "POST /orders/:order/pay": there is no such route; did you mean "POST /orders/:id/pay"?`,
		"POST /orders/:id/pay/":   `did you mean "POST /orders/:id/pay"?`,
		"GET /articles/:slug":     `did you mean "PUT /articles/:slug"?`,
		"POST /ordres":            `there is no such route; correct its name, or register the route before`,
	} {
		guard, err := ginlock.FromRules(l, httplock.Rules{route: {Key: "x"}, "PUT /articles/:slug": {Key: "article:{param.slug}"}})
		if err != nil {
			t.Fatal(err)
		}
		guard.Handler()
		if err := guard.Validate(e.Routes()); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), `rule "PUT`) {
			t.Errorf("%s: %v, want %s", route, err, says)
		}
	}
}

func TestRulesStandInJSON(t *testing.T) {
	rules, err := ginlock.ParseRules([]byte(`
{
	"POST /orders/:id/pay": {
		"key": "order:{param.id}:{header.X-Tenant}", "name": "pay", "wait": "250ms", "ttl": "10s", "keep-for": "1s", "end-after": "1m",
		"once-for": "24h", "fail-open": true
	},
	"GET /articles/:slug": {"key": "article:{param.slug}", "mode": "shared", "wait": "none"},
	"DELETE /articles/:slug": {"k\u0065y": "article:{param.slug}", "mode": "exclusive", "fail-open": false},
	"POST /baskets": {"keys": ["stock:{body.items.*.sku}", "till"], "idempotency": "{claim.sub}", "lifetime": "1h", "max-body": "64KiB"},
	"POST /uploads": {"key": "upload", "streamed-body": true, "max-body": 100},
	"POST /reports": {"key": "reports", "limit": 3, "weight": 2},
	"POST /visits": {"lock": "none"}
}
`))
	want := httplock.Rules{
		"POST /orders/:id/pay": {
			Key: "order:{param.id}:{header.X-Tenant}", Name: "pay", Wait: 250 * time.Millisecond, TTL: 10 * time.Second,
			KeepFor: time.Second, EndAfter: time.Minute, OnceFor: 24 * time.Hour, FailOpen: true,
		},
		"GET /articles/:slug":    {Key: "article:{param.slug}", Mode: locker.Shared, Wait: locker.NoWait},
		"DELETE /articles/:slug": {Key: "article:{param.slug}"},
		"POST /reports":          {Key: "reports", Limit: 3, Weight: 2},
		"POST /baskets":          {Keys: []httplock.Key{"stock:{body.items.*.sku}", "till"}, Idempotency: "{claim.sub}", Lifetime: time.Hour, MaxBody: 64 << 10},
		"POST /uploads":          {Key: "upload", StreamedBody: true, MaxBody: 100},
		"POST /visits":           {NoLock: true},
	}
	if err != nil || !reflect.DeepEqual(rules, want) {
		t.Errorf("%+v, %v, want %+v", rules, err, want)
	}
}

// Each mistake is named with its line, and all mistakes of a text together.
func TestMistakesInJSONAreNamedWithTheirLine(t *testing.T) {
	for text, says := range map[string][]string{
		`{"POST /a": {"kee": "x"}}`:                                          {`line 1: rule "POST /a": the member "kee" is unknown`},
		`{"POST /a": {"Key": "x"}}`:                                          {`the member "Key" is unknown`},
		"{\"POST /a\": {\n\"key\": \"x\",\n\n\"kee\": 1}}":                   {`ginlock: line 4: rule "POST /a": the member "kee" is unknown`},
		"{\"POST /a\": {\"key\": \"x\"},\n\"POST /a\": {}}":                  {`line 2: the table of rules: POST /a has no value`},
		"{\"POST /a\": {\"key\": \"x\"},\n\"POST \\u002fa\": 1}":             {`line 2: the table of rules: POST /a stands twice; keep one`},
		"{\"POST /a\": {\"key\": \"x\",\n\"key\": \"x\"}}":                   {`line 2: rule "POST /a": key stands twice; keep one`},
		"{\"POST /a\": {\"once-for\": \"1h\",\n\"once\\u002dfor\": \"2h\"}}": {`line 2: rule "POST /a": once-for stands twice`},
		`{"POST /a": {"wait": "soon"}}`:                                      {`its wait "soon" is no time; write for example "250ms", "10s" or "24h", or "none" to refuse at once`},
		"{\"POST /a\": {\"ttl\": \"-1s\"},\n\"GET /b\": {\"ttl\": 5}}":       {`line 1: rule "POST /a": its ttl "-1s" is no time`, `line 2: rule "GET /b": its ttl 5 is no time; write for example "250ms"`},
		`{"POST /a": {"once-for": true}}`:                                    {`its once-for true is no time`},
		`{"POST /a": {"mode": "optimistic"}}`:                                {`its mode "optimistic" is unknown; write exclusive or shared`},
		`{"POST /a": {"wait": "0s"}}`:                                        {`its wait "0s" is no time; write for example "250ms", "10s" or "24h", or "none" to refuse at once`},
		`{"POST /a": {"max-body": "big"}}`:                                   {`its max-body "big" is no size; write for example 65536, "64KiB" or "1MiB"`},
		`{"POST /a": {"max-body": 0}}`:                                       {`max-body has no value`},
		`{"POST /a": {"lock": "some"}}`:                                      {`its lock "some" is unknown; write "none"`},
		`{"POST /a": {"lock": true}}`:                                        {`its lock true is unknown`},
		`{"POST /a": {"key": 5}}`:                                            {`its key cannot be a number`},
		`{"POST /a": {"keys": "x"}}`:                                         {`its keys cannot be a string`},
		`{"POST /a": {"weight": "many"}}`:                                    {`its weight cannot be a string`},
		`{"POST /a": {"fail-open": "yes"}}`:                                  {`its fail-open cannot be a string`},
		`{"POST /a": {"limit": 1.5}}`:                                        {`its limit cannot be a number 1.5`},
		"\n\n[\"POST /a\"]":                                                  {`line 3: the table of rules is not an object`},
		`{"POST /a": "order"}`:                                               {`rule "POST /a" is not an object`},
		"{\"POST /a\": {\"key\": \"x\"}}\n{\"POST /b\": {}}":                 {`line 2: the rules are not JSON`, `after top-level value`},
		"POST /a:\n  key: x\n":                                               {`line 1: the rules are not JSON, and another format must be converted first`},
		"{\n\"POST /a\": {\n\"key\": \"x\",\n}}":                             {`line 4: the rules are not JSON`},
		"{\"POST /a\": {\"key\": \"x\"}":                                     {`the rules are not JSON`, `unexpected end`},
	} {
		got, err := ginlock.ParseRules([]byte(text))
		if err == nil || got != nil {
			t.Errorf("%s: %+v, %v", text, got, err)
			continue
		}
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v, want %s", text, err, s)
			}
		}
		if n := strings.Count(err.Error(), "ginlock: line "); n != len(says) && !strings.Contains(err.Error(), "not JSON") {
			t.Errorf("%s: %d mistakes: %v", text, n, err)
		}
	}
	for _, text := range []string{"", " \n", "{}"} {
		if rules, err := ginlock.ParseRules([]byte(text)); err == nil || !strings.Contains(err.Error(), "there are no rules in the text") {
			t.Errorf("%q: %v, %v", text, rules, err)
		}
	}
}

// An empty member would have no effect: without once-for, the work is repeated.
func TestAnEmptyMemberIsNotTakenAsLeftOut(t *testing.T) {
	for _, name := range []string{
		"key", "keys", "lock", "idempotency", "name", "mode", "wait", "ttl", "keep-for", "end-after", "once-for", "lifetime",
		"limit", "weight", "fail-open", "streamed-body", "max-body",
	} {
		for _, empty := range []string{"null", `""`, "[]", "{}", "[ \n ]", `" "`} {
			text := "{\n\"POST /a\": {\n\"" + name + "\": " + empty + ",\n\"key\": \"a\"}}"
			want := "line 3: rule \"POST /a\": " + name + " has no value; write the value, or leave " + name + " out"
			if rules, err := ginlock.ParseRules([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %+v, %v, want %s", text, rules, err, want)
			}
		}
	}
	_, err := ginlock.ParseRules([]byte("{\"POST /a\": {},\n\"POST /b\": {\"key\": null, \"ttl\": \"soon\"}, \"POST /c\": null}"))
	for _, want := range []string{"line 1: the table of rules: POST /a has no value", "line 2: rule \"POST /b\": key has no value", `its ttl "soon" is no time`, "POST /c has no value"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Whatever the text is, its rules are those that encoding/json finds, or the error names a line of
// the text.
func FuzzParseRules(f *testing.F) {
	f.Add("{\"POST /a\": {\"key\": \"a\", \"wait\": \"none\", \"max-body\": \"1KiB\"},\n\"PUT /b\": {\"keys\": [\"b\"], \"mode\": \"shared\"}}")
	f.Add("{\"\\ud800\": {\"key\": \"\xff\"}, \"\": [1, {\"a\": null}]}")
	f.Add("\ufeff{\n")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := ginlock.ParseRules([]byte(text))
		var known map[string]any
		if err == nil && (json.Unmarshal([]byte(text), &known) != nil || len(known) != len(rules)) {
			t.Errorf("%q: %+v, and encoding/json finds %v", text, rules, known)
		}
		if err == nil || strings.Contains(err.Error(), "there are no rules") {
			return
		}
		var line int
		if _, scan := fmt.Sscanf(err.Error(), "ginlock: line %d:", &line); scan != nil || line < 1 || line > 1+strings.Count(text, "\n") {
			t.Errorf("%q: %v", text, err)
		}
	})
}
