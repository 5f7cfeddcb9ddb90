package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// keyOf returns the key of a request. If the request has no key, it returns the reply to the
// request.
func keyOf(t testing.TB, r *http.Request, k httplock.Key, opts ...httplock.Option) (string, *httptest.ResponseRecorder) {
	t.Helper()
	got := ""
	l := lockerFunc(func(r locker.Rule) error { got = r.Key; return locker.ErrBusy })
	w := httptest.NewRecorder()
	shop(httplock.MustNew(l, k, opts...), paid).ServeHTTP(w, r)
	return got, w
}

type userKey struct{}

func TestEachPartOfARequestIsRead(t *testing.T) {
	opts := []httplock.Option{
		httplock.WithClaims(func(*http.Request) map[string]any { return map[string]any{"sub": "ann"} }),
		httplock.WithPart("user", func(r *http.Request) (string, error) { return fmt.Sprint(r.Context().Value(userKey{})), nil }),
		httplock.WithPart("shard", func(r *http.Request) (string, error) { return r.PathValue("id")[:1], nil }),
		httplock.WithPart("ip", func(r *http.Request) (string, error) { return r.Header.Get("X-Real-Ip"), nil }),
	}
	for k, want := range map[httplock.Key]string{
		"order:{param.id}:{query.page}":       "order:42:7",
		"h:{header.x-tenant}:{cookie.s}":      "h:acme:3",
		"u:{claim.sub}:{user}":                "u:ann:17",
		"b:{body.items.0.sku}":                "b:a",
		"p:{shard}:{ip}":                      "p:4:203.0.113.9",
		"h:{header.host}":                     "h:shop.example",
		"i:{idempotency-key}":                 "i:k",
		"x:{header.X-Tenant|hmac}:{param.id}": "",
	} {
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), userKey{}, 17), "POST", "/orders/42?page=7", strings.NewReader(`{"items": [{"sku": "a"}]}`))
		r.Host = "shop.example"
		for name, value := range map[string]string{"X-Tenant": "acme", "Cookie": "s=3", "X-Real-Ip": "203.0.113.9", "Idempotency-Key": "k"} {
			r.Header.Set(name, value)
		}
		got, w := keyOf(t, r, k, append(opts, httplock.WithSecret([]byte("0123456789abcdef")))...)
		if want == "" {
			if !strings.HasPrefix(got, "x:~") || strings.Contains(got, "acme") || !strings.HasSuffix(got, ":42") {
				t.Errorf("%s is %q", k, got)
			}
			continue
		}
		if got != want {
			t.Errorf("%s is %q, want %q; %s", k, got, want, w.Body)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", http.NoBody)
	if got, _ := keyOf(t, r, "ip:{ip}"); got != "ip:192.0.2.1" {
		t.Errorf("%q", got)
	}
}

func FuzzAQueryIsReadAsNetURLReadsIt(f *testing.F) {
	for _, q := range []string{
		"q=1", "q=1&q=2", "p=1&q=2", "q=", "q", "", "&&q=1", "q=a%3Ab", "q=%zz&q=2", "%71=1", "%7=1&q=2", "q=a+b", "a;q=1&q=2", "q=1;2&q=3", "qq=1", "Q=1", "q=a=b", "+q=1", "q%20=1",
	} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, _ := url.ParseQuery(query)
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", http.NoBody)
		r.URL.RawQuery = query
		part := ""
		got, _ := keyOf(t, r, "x:{query.q}")
		ask, _ := keyOf(t, r, "x:{part}", httplock.WithPart("part", func(*http.Request) (string, error) { part = values.Get("q"); return part, nil }))
		if got != ask {
			t.Errorf("%q: %q, want %q of %q", query, got, ask, part)
		}
	})
}

func TestABodyInWhichTwoReadersCouldFindDifferentValuesIsRefused(t *testing.T) {
	for body, want := range map[string]string{
		`{"sku": "a"}`:                      "a",
		`{"SKU": "a"}`:                      "a", // encoding/json accepts this spelling, too
		` {"x": {"sku": "b"}, "sku": "a"} `: "a",
		`{"sku": 7}`:                        "7",
		`{"sku": 7.0}`:                      "7",
		`{"sku": 70e-1}`:                    "7",
		`{"sku": true}`:                     "true",
		`{"sku": "a", "sku": "b"}`:          `400 the member of the body \"sku\" is not usable: it occurs more than once`,
		`{"sku": "a", "SKU": "b"}`:          "400 more than once",
		`{"\u0073ku": "a", "sku": "b"}`:     "400 more than once",
		`{"ſku": "a", "sku": "b"}`:          "400 more than once", // ſ is a long s, which counts as an s when case is ignored
		`{"sku": "a"} {"sku": "b"}`:         "400 not JSON",
		`{"sku": "a"`:                       "400 not JSON",
		`sku=a`:                             "400 not JSON",
		`{"sku": {"a": 1}}`:                 "400 not a string, a number or a boolean",
		`{"sku": ["a"]}`:                    "400 not a string, a number or a boolean",
		`{"sku": 1e400}`:                    "400 a number this large",
		`{"sku": null}`:                     `400 the request lacks the member of the body \"sku\"`,
		`{"sku": ""}`:                       "400 lacks",
		`{}`:                                "400 lacks",
		`[]`:                                "400 lacks",
		`"sku"`:                             "400 lacks",
		``:                                  "400 lacks",
		`{"sku": "` + strings.Repeat("x", 100) + `"}`: "413 body-too-large",
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", strings.NewReader(body))
		got, w := keyOf(t, r, "order:{body.sku}", httplock.WithMaxBody(100))
		code, says, refused := strings.Cut(want, " ")
		switch {
		case !refused && got != "order:"+want:
			t.Errorf("%s: %q, want %q; %s", body, got, want, w.Body)
		case refused && (got != "" || !strings.HasPrefix(w.Result().Status, code) || !strings.Contains(w.Body.String(), says)):
			t.Errorf("%s: %q, %d %s, want %s", body, got, w.Code, w.Body, want)
		}
	}
}

func TestAPartThatTheProgramCannotReadIsNotTheClientsFault(t *testing.T) {
	for name, opts := range map[string][]httplock.Option{
		"part":  {httplock.WithPart("plan", func(*http.Request) (string, error) { return "", errors.New("db: secret host") })},
		"claim": {httplock.WithClaims(func(*http.Request) map[string]any { return map[string]any{"plan": []string{"secret"}} })},
	} {
		var told []*httplock.Problem
		k := map[string]httplock.Key{"part": "x:{plan}", "claim": "x:{claim.plan}"}[name]
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", http.NoBody)
		if _, w := keyOf(t, r, k, append(opts, problems(&told))...); w.Code != 500 || strings.Contains(w.Body.String(), "secret") || len(told) != 1 || !told[0].Failure() {
			t.Errorf("%s: %d %s, log %v", name, w.Code, w.Body, told)
		}
	}
}

func TestAParameterThatThePatternLacksIsTheProgramsMistake(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", http.NoBody)
	var told []*httplock.Problem
	if _, w := keyOf(t, r, "x:{param.number}", problems(&told)); w.Code != 500 || len(told) != 1 || !strings.Contains(told[0].Error(), `the route has no parameter "number"`) {
		t.Errorf("%d %s, %v", w.Code, w.Body, told)
	}
}

// Some routers keep the values of a path for themselves, as gorilla/mux and go-zero do.
func TestAParameterIsReadAsTheRouterGivesIt(t *testing.T) {
	vars := func(r *http.Request) map[string]string {
		return map[string]string{"order": r.URL.Query().Get("order"), "empty": ""}
	}
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42?order=043", http.NoBody)
	if got, w := keyOf(t, r, "order:{param.order|int}", httplock.WithPathValues(vars)); got != "order:43" {
		t.Errorf("key %q, %d %s", got, w.Code, w.Body)
	}
	for k, status := range map[httplock.Key]int{"order:{param.id}": http.StatusInternalServerError, "order:{param.empty}": http.StatusBadRequest} {
		if got, w := keyOf(t, r, k, httplock.WithPathValues(vars)); w.Code != status {
			t.Errorf("%s: key %q, %d %s", k, got, w.Code, w.Body)
		}
	}
}

// The text of a form can also be valid JSON. If keys were read from forms, such a form could lock
// one article and sell another article.
func TestAKeyReadsJSONTypesOnly(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustNew(l, "stock:{body.sku}")(paid)
	for contentType, want := range map[string]int{
		"": 200, "application/json": 200, "application/json; charset=utf-8": 200, "application/vnd.shop+json": 200,
		"application/x-www-form-urlencoded": 415, "text/plain": 415, "multipart/form-data; boundary=x": 415, ";": 415,
	} {
		w := send(t.Context(), h, "POST", "/", `{"sku":"decoy","x":"&sku=GPU&"}`, "Content-Type", contentType)
		if w.Code != want || want == 415 && !strings.Contains(w.Body.String(), httplock.CodeNotJSON) {
			t.Errorf("%q: %d %s", contentType, w.Code, w.Body)
		}
	}
}

func TestABasketLocksEachOfItsArticles(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	var keys []string
	h := httplock.MustNew(l, "stock:{body.items.*.sku}", httplock.WithKeys("till"), httplock.WithWait(locker.NoWait))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, lease := range locker.LeasesFromContext(r.Context()) {
				keys = append(keys, lease.Key())
			}
			w.WriteHeader(http.StatusNoContent)
		}))
	const basket = `{"items":[{"sku":"pen"},{"sku":"book"},{"sku":"pen"},{"sku":7}]}`
	if w := send(t.Context(), h, "POST", "/", basket); w.Code != 204 || strings.Join(keys, " ") != "till stock:pen stock:book stock:7" {
		t.Errorf("%d %s, %q", w.Code, w.Body, keys)
	}
	store.Occupy("stock:book", 0)
	if w := send(t.Context(), h, "POST", "/", basket); w.Code != 409 || store.Len() != 1 {
		t.Errorf("%d %s, %d locks; want all or none", w.Code, w.Body, store.Len())
	}
	for _, wrong := range []string{`{"items":[{"sku":"pen"},{"count":2}]}`, `{"items":[]}`, `{"items":{"sku":"pen"}}`, `{}`} {
		if w := send(t.Context(), h, "POST", "/", wrong); w.Code != 400 {
			t.Errorf("%s: %d %s", wrong, w.Code, w.Body)
		}
	}
}
