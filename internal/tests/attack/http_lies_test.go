package attack_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// guarded returns handlers for net/http, chi and Gin. Each handler has one guarded route, POST
// /orders/{id}.
func guarded(l locker.Locker, k httplock.Key, h http.HandlerFunc, opts ...httplock.Option) map[string]http.Handler {
	gin.SetMode(gin.ReleaseMode)
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", httplock.MustNew(l, k, opts...)(h))
	r := chi.NewRouter()
	r.With(httplock.MustNew(l, k, opts...)).Post("/orders/{id}", h)
	e := gin.New()
	e.POST("/orders/:id", ginlock.MustNew(l, k, opts...), func(c *gin.Context) { h(c.Writer, c.Request) })
	return map[string]http.Handler{"net/http": mux, "chi": r, "Gin": e}
}

// watched is a Locker that refuses every acquire and records the keys.
type watched struct {
	mu   sync.Mutex
	keys []string
}

func (w *watched) Acquire(_ context.Context, r locker.Rule) (*locker.Lease, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, r.Key)
	return nil, &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrBusy}
}

// take returns the keys for which the guard has asked since the last take, separated by spaces, and
// forgets them.
func (w *watched) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.keys = nil }()
	return strings.Join(w.keys, " ")
}

func exchange(h http.Handler, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// The ids and tenants in these requests look like other values, or like a template. Each pair
// of an id and a tenant has its own key, or the guard refuses the request as a mistake of the
// client.
func TestNoValueReachesTheKeyOfAnotherRequest(t *testing.T) {
	lies := []string{
		"42", "042", "%2042", "42%20", "42:acme", "42%3Aacme", "%0d%0a42", "%00", "{param.id}", "%7Bparam.id%7D", "~", "%7E0",
		"a%2Fb", "%EF%BB%BF42", "%ED%A0%80", "%FF", strings.Repeat("9", 5000), "é", "e%CC%81",
	}
	for name := range guarded(&watched{}, "x", nil) {
		t.Run(name, func(t *testing.T) {
			l := &watched{}
			door := guarded(l, "order:{param.id}:{header.X-Tenant}", nil)[name]
			seen := make(map[string]string)
			for _, id := range lies {
				for _, tenant := range []string{"acme", "42", "acme:42", "a{c}me", strings.Repeat("t", 5000)} {
					w := exchange(door, "/orders/"+id, "", "X-Tenant", tenant)
					k := l.take()
					switch {
					case w.Code == http.StatusBadRequest && k == "", w.Code == http.StatusNotFound && k == "":
						continue
					case w.Code != http.StatusConflict || k == "":
						t.Errorf("%.20q of %.10q: %d %s", id, tenant, w.Code, w.Body)
					}
					logical := fmt.Sprint(httptest.NewRequest("POST", "/orders/"+id, http.NoBody).URL.Path, "\x00", tenant)
					if other, ok := seen[k]; ok && other != logical {
						t.Errorf("%.20q and %.20q have one key %.40q", logical, other, k)
					}
					seen[k] = logical
				}
			}
			if len(seen) < 20 {
				t.Errorf("only %d keys", len(seen))
			}
		})
	}
}

// A request is refused if two parsers could read its body differently. Each spelling of a number
// leads to the same key.
func TestABodyWithTwoReadingsLocksNothing(t *testing.T) {
	deep := strings.Repeat("[", 200_000)
	for body, want := range map[string]string{
		`{"sku":"pen"}`:              "stock:pen",
		`{"sku":1.0}`:                "stock:1",
		`{"sku":-0}`:                 "stock:0",
		`{"sku":9007199254740993}`:   "stock:9007199254740993",
		`{"sku":"pen","sku":"ink"}`:  "",
		`{"sku":"pen","SKU":"ink"}`:  "",
		`{"sku":"pen"}{"sku":"ink"}`: "",
		"\ufeff" + `{"sku":"pen"}`:   "",
		`["pen"]`:                    "",
		`{"sku":"\ud800"}`:           "stock:\ufffd", // encoding/json replaces the lone surrogate by U+FFFD

		`{"sku":""}`:                             "",
		`{"sku":null}`:                           "",
		`{"sku":{"a":1}}`:                        "",
		`{"sku":1e999999999}`:                    "",
		`{"sku":` + deep:                         "",
		"\x1f\x8b\x08gzip":                       "",
		`sku=pen`:                                "",
		`{"sku":"pen","x":"` + deep + deep + `"`: "",
	} {
		l := &watched{}
		for name, h := range guarded(l, "stock:{body.sku}", nil) {
			w := exchange(h, "/orders/1", body, "Content-Type", "application/json")
			if k := l.take(); k != want || want == "" && w.Code != 400 && w.Code != 413 {
				t.Errorf("%s, %.30q: %d, key %.40q, want %q", name, body, w.Code, k, want)
			}
		}
	}
	l := &watched{}
	for name, h := range guarded(l, "stock:{body.sku}", nil) {
		for _, media := range []string{"application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "application/json;;"} {
			if name == "Gin" && media == "application/json;;" {
				continue // Gin reads the type up to the first semicolon, so its handlers read JSON
			}
			if w := exchange(h, "/orders/1", `{"sku":"decoy","x":"&sku=GPU&"}`, "Content-Type", media); w.Code != 415 || l.take() != "" {
				t.Errorf("%s, %s: %d", name, media, w.Code)
			}
		}
	}
}

// The request for a basket with three articles locks all three articles, or no article.
func TestABasketOfThree(t *testing.T) {
	const basket = `{"items":[{"sku":"pen"},{"sku":"ink"},{"sku":"cup"}]}`
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	h := func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, len(locker.LeasesFromContext(r.Context())))
	}
	for name, door := range guarded(l, "stock:{body.items.*.sku}", h, httplock.WithWait(locker.NoWait)) {
		if w := exchange(door, "/orders/1", basket, "Content-Type", "application/json"); w.Code != 200 || w.Body.String() != "3" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	store.Occupy("stock:cup", 0)
	for name, door := range guarded(l, "stock:{body.items.*.sku}", h, httplock.WithWait(locker.NoWait)) {
		if w := exchange(door, "/orders/1", basket, "Content-Type", "application/json"); w.Code != 409 || store.Len() != 1 {
			t.Errorf("%s: %d %s, %d leases", name, w.Code, w.Body, store.Len())
		}
	}
}

// Here a group and its route lock the same key, so a request would wait for itself. The request is
// refused at once, as a mistake of the program.
func TestALockInsideItselfIsRefusedAtOnce(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	inner := httplock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Hour))
	ran := inner(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
	for name, door := range guarded(l, "order:{param.id}", ran.ServeHTTP) {
		if name == "Gin" {
			continue // the inner guard is from httplock, which does not know the parameters of Gin's routes
		}
		if w := exchange(door, "/orders/1", ""); w.Code != 500 || !strings.Contains(w.Body.String(), "lock-misconfigured") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	e := gin.New()
	e.POST("/orders/:id", ginlock.MustNew(l, "order:{param.id}"), ginlock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Hour)),
		func(*gin.Context) { t.Error("the handler ran") })
	if w := exchange(e, "/orders/1", ""); w.Code != 500 {
		t.Errorf("Gin: %d %s", w.Code, w.Body)
	}
}
