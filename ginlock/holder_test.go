package ginlock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The Locker's error names the holder, for operators. No client may see the name, also not if a
// middleware sends the text of the Problem.
func TestAReplyDoesNotNameTheHolder(t *testing.T) {
	const holder = "report@pod-7f9c:1"
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithMetadata(func(context.Context) string { return holder }))
	lease, err := l.Acquire(t.Context(), locker.Rule{Key: "order:42"})
	if err != nil {
		t.Fatal(err)
	}
	var named bool
	e := gin.New()
	e.POST("/orders/:id", func(c *gin.Context) {
		c.Next()
		p, ok := ginlock.Outcome(c)
		if !ok {
			t.Fatal("the request got its lock")
		}
		named = strings.Contains(p.Unwrap().Error(), holder)
		c.Writer.Header().Set("Trailer-Like", p.Error()+c.Errors.String())
		_, _ = c.Writer.WriteString(p.Error())
	}, ginlock.MustNew(l, "order:{param.id}", httplock.WithWait(locker.NoWait)))
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42", http.NoBody))
	if shown := fmt.Sprint(w.Code, w.Header(), w.Body); !named || w.Code != http.StatusConflict || strings.Contains(shown, "report") || strings.Contains(shown, "7f9c") {
		t.Errorf("the Locker's error names the holder: %v; the reply is %s", named, shown)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
