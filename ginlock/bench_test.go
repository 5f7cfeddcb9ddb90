package ginlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// routes returns the same route three times: without a lock, with a handler that takes the lock
// itself, and guarded.
func routes(tb testing.TB) map[string]*gin.Engine {
	tb.Helper()
	l := lockertest.NewLocker(tb, lockertest.NewMemory())
	done := func(c *gin.Context) { c.Status(http.StatusNoContent) }
	guard, err := ginlock.FromRules(l, httplock.Rules{"POST /orders/:id": {Key: "order:{param.id}", Wait: locker.NoWait}})
	if err != nil {
		tb.Fatal(err)
	}
	engines := make(map[string]*gin.Engine)
	for name, handlers := range map[string][]gin.HandlerFunc{
		"no lock": {done},
		"Run in the handler": {func(c *gin.Context) {
			rule := locker.Rule{Key: "order:" + c.Param("id"), Name: "order", Wait: locker.NoWait}
			if err := locker.Run(c.Request.Context(), l, rule, func(context.Context) error { done(c); return nil }); err != nil {
				tb.Error(err)
			}
		}},
		"New":       {ginlock.MustNew(l, "order:{param.id}", httplock.WithWait(locker.NoWait)), done},
		"FromRules": {guard.Handler(), done},
	} {
		engines[name] = gin.New()
		engines[name].POST("/orders/:id", handlers...)
	}
	return engines
}

// BenchmarkRequest compares three routes on the Store in memory: a guarded route, a route whose
// handler calls Run itself, and a route without a lock.
func BenchmarkRequest(b *testing.B) {
	for name, e := range routes(b) {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/orders/42", http.NoBody)
			var w discard
			b.ReportAllocs()
			for b.Loop() {
				e.ServeHTTP(&w, r)
			}
			if w.status != http.StatusNoContent {
				b.Fatal(w.status)
			}
		})
	}
}

// BenchmarkRefusal measures the reply to a request whose lock is busy.
func BenchmarkRefusal(b *testing.B) {
	e := engine(nil, ginlock.MustNew(lockerFunc(func(locker.Rule) error { return locker.ErrBusy }), "order:{param.id}"), ok)
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/orders/42", http.NoBody)
	var w discard
	b.ReportAllocs()
	for b.Loop() {
		e.ServeHTTP(&w, r)
	}
}

// discard is a client that reads only the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header {
	if d.header == nil {
		d.header = make(http.Header)
	}
	return d.header
}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(code int)        { d.status = code }
