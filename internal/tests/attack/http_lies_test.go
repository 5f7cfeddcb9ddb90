package attack_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
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
