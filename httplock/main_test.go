package httplock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// lockerFunc is a Locker that refuses every Rule.
type lockerFunc func(locker.Rule) error

func (f lockerFunc) Acquire(_ context.Context, rule locker.Rule) (*locker.Lease, error) {
	return nil, f(rule)
}

var paid = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("paid")) })

// shop returns a mux with one guarded route, POST /orders/{id}.
func shop(middleware func(http.Handler) http.Handler, h http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", middleware(h))
	return mux
}

// send sends one request to h without a network. So send can be used in a bubble of synctest, with
// virtual time.
func send(ctx context.Context, h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// problems returns an option that records each Problem.
func problems(to *[]*httplock.Problem) httplock.Option {
	return httplock.WithObserve(func(_ *http.Request, p *httplock.Problem) { *to = append(*to, p) })
}
