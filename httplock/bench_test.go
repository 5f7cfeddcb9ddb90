package httplock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// discard is a client that reads only the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(code int)        { d.status = code }

var done = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

// handlers returns two handlers that do the same work. The first handler takes the lock itself. For
// the second handler, the adapter takes the lock.
func handlers(tb testing.TB) map[string]http.Handler {
	tb.Helper()
	l := lockertest.NewLocker(tb, lockertest.NewMemory())
	return map[string]http.Handler{
		"Run in the handler": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rule := locker.Rule{Key: "order:" + r.Header.Get("X-Order"), Name: "order", Wait: locker.NoWait}
			if err := locker.Run(r.Context(), l, rule, func(context.Context) error { done(w, r); return nil }); err != nil {
				tb.Error(err)
			}
		}),
		"httplock": httplock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(locker.NoWait))(done),
	}
}

func order(ctx context.Context) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/42", http.NoBody)
	r.Header.Set("X-Order", "42")
	return r
}

// BenchmarkRequest compares a guarded handler with a handler that calls Run itself, on the Store
// in memory.
func BenchmarkRequest(b *testing.B) {
	for name, h := range handlers(b) {
		b.Run(name, func(b *testing.B) {
			r, w := order(b.Context()), &discard{header: make(http.Header)}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
			if w.status != http.StatusNoContent {
				b.Fatal(w.status)
			}
		})
	}
}

// BenchmarkBody measures a request that has a part of its key in its body.
func BenchmarkBody(b *testing.B) {
	l := lockertest.NewLocker(b, lockertest.NewMemory())
	h := httplock.MustNew(l, "sku:{body.sku}", httplock.WithWait(locker.NoWait))(done)
	w := &discard{header: make(http.Header)}
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/", strings.NewReader(`{"count": 2, "sku": "book-17"}`)))
	}
}

// BenchmarkReplay measures a request whose stored reply is sent again.
func BenchmarkReplay(b *testing.B) {
	l := lockertest.NewLocker(b, lockertest.NewMemory())
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(done)
	r, w := order(b.Context()), &discard{header: make(http.Header)}
	r.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
	if w.header.Get("Idempotency-Replayed") != "true" {
		b.Fatal(w.header)
	}
}
