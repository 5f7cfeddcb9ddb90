package ginlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	redistest.Main(m)
}

// seen is what an outer middleware, such as a logger, finds at the end of a request.
type seen struct {
	errors  []string
	outcome string // the code of the Problem
}

// engine returns a Gin engine with one guarded route, POST /orders/:id. Its outermost middleware
// records in the parameter see how each request ended.
func engine(see *seen, guard gin.HandlerFunc, handler gin.HandlerFunc) *gin.Engine {
	e := gin.New()
	if see != nil {
		e.Use(func(c *gin.Context) {
			c.Next()
			see.errors = c.Errors.Errors()
			if p, ok := ginlock.Outcome(c); ok {
				see.outcome = p.Code
			}
		})
	}
	e.POST("/orders/:id", guard, handler)
	return e
}

// post sends one request to e without a network. So post can be used in a bubble of synctest, with
// virtual time.
func post(ctx context.Context, e http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, target, http.NoBody))
	return w
}

func ok(c *gin.Context) { c.String(http.StatusOK, "paid") }

// lockerFunc is a Locker that refuses every Rule.
type lockerFunc func(locker.Rule) error

func (f lockerFunc) Acquire(_ context.Context, rule locker.Rule) (*locker.Lease, error) {
	return nil, f(rule)
}
