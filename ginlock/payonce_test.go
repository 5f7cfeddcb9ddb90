package ginlock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// Gin adds the error of a write to c.Errors, and an outer middleware takes it for a failure.
func TestPaysOnceWhenTheClientLeaves(t *testing.T) {
	locktest.PaysOnce(t, true, func(t *testing.T, pay func(context.Context), receipt []byte) string {
		e := gin.New()
		e.Use(func(c *gin.Context) {
			if c.Next(); len(c.Errors) > 0 {
				c.AbortWithStatus(http.StatusInternalServerError)
			}
		})
		once := ginlock.WithRule(func(_ *gin.Context, r *locker.Rule) { r.OnceFor = time.Hour })
		e.POST("/orders/:id", ginlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", once), func(c *gin.Context) {
			pay(c.Request.Context())
			c.Data(http.StatusCreated, "text/plain", receipt)
		})
		server := httptest.NewServer(e)
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	})
}

// Once a status was written, it decides. Before that, c.Error is a failure: an outer middleware
// writes the reply.
func TestAnErrorIsAFailureOnlyBeforeTheStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		reply func(c *gin.Context)
		code  int
	}{
		"no status":          {func(*gin.Context) {}, http.StatusOK},
		"a status unwritten": {func(c *gin.Context) { c.Status(http.StatusCreated) }, http.StatusOK},
		"a status":           {func(c *gin.Context) { c.Status(http.StatusCreated); c.Writer.WriteHeaderNow() }, http.StatusConflict},
		"a body":             {func(c *gin.Context) { c.String(http.StatusCreated, "paid") }, http.StatusConflict},
		"a failure":          {func(c *gin.Context) { c.String(http.StatusBadGateway, "no") }, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			once := ginlock.WithRule(func(_ *gin.Context, r *locker.Rule) { r.OnceFor = time.Hour })
			e := engine(nil, ginlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", once), func(c *gin.Context) {
				if runs++; runs == 1 {
					tc.reply(c)
					_ = c.Error(errors.New("the mail was not sent"))
				}
			})
			post(t.Context(), e, "/orders/42")
			if w := post(t.Context(), e, "/orders/42"); w.Code != tc.code {
				t.Errorf("again: %d %s, %d runs", w.Code, w.Body, runs)
			}
		})
	}
}

// Under idempotency, too, c.Error before the status was written is a failure: the reply of an outer
// middleware is not what a repeated request would get.
func TestAnErrorBeforeTheStatusIsNotStored(t *testing.T) {
	runs := 0
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e := gin.New()
	e.Use(func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 && !c.Writer.Written() {
			c.AbortWithStatus(http.StatusInternalServerError)
		}
	})
	e.POST("/orders/:id", ginlock.MustIdempotency(l, idempotency.NewMemory(), "shop"), func(c *gin.Context) {
		if runs++; runs == 1 {
			c.Status(http.StatusAccepted)
			_ = c.Error(errors.New("the bank is down"))
			return
		}
		c.String(http.StatusCreated, "paid")
	})
	for _, want := range []int{http.StatusInternalServerError, http.StatusCreated, http.StatusCreated} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42", nil)
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		if e.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%d %s, want %d", w.Code, w.Body, want)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}
