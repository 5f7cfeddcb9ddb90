package ginlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// BenchmarkRequest compares a guarded route with one whose handler calls Run itself, and with one without a lock, on the
// Store in memory.
func BenchmarkRequest(b *testing.B) {
	l := lockertest.NewLocker(b, lockertest.NewMemory())
	done := func(c *gin.Context) { c.Status(http.StatusNoContent) }
	for _, bm := range []struct {
		name     string
		handlers []gin.HandlerFunc
	}{
		{"no lock", []gin.HandlerFunc{done}},
		{"Run in the handler", []gin.HandlerFunc{func(c *gin.Context) {
			rule := locker.Rule{Key: "order:" + c.Param("id"), Name: "order"}
			if err := locker.Run(c.Request.Context(), l, rule, func(context.Context) error { done(c); return nil }); err != nil {
				b.Error(err)
			}
		}}},
		{"ginlock", []gin.HandlerFunc{ginlock.New(l, "order:{param.id}", ginlock.WithWait(locker.NoWait)), done}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			e := gin.New()
			e.POST("/orders/:id", bm.handlers...)
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
	e := engine(nil, ginlock.New(lockerFunc(func(locker.Rule) error { return locker.ErrBusy }), "order:{param.id}"), ok)
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/orders/42", http.NoBody)
	var w discard
	b.ReportAllocs()
	for b.Loop() {
		e.ServeHTTP(&w, r)
	}
}

// discard is a client that looks at the status only.
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
