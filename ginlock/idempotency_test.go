package ginlock_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// pays sends a request for a payment, with an Idempotency-Key.
func pays(t *testing.T, h http.Handler, key, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("X-Tenant", "acme")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestAPaymentThatComesAgainIsAnsweredAndNotMade(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	for name, tc := range map[string]struct {
		handler gin.HandlerFunc
		code    int
		body    string
	}{
		"JSON":       {func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"paid": true}) }, 201, `{"paid":true}`},
		"a status":   {func(c *gin.Context) { c.Status(http.StatusNoContent) }, 204, ""},
		"status 200": {func(c *gin.Context) { c.Status(http.StatusOK) }, 200, ""},
		"nothing":    {func(*gin.Context) {}, 200, ""},
		"a string":   {func(c *gin.Context) { _, _ = c.Writer.WriteString("paid"); c.Writer.Flush() }, 200, "paid"},
		"an abort":   {func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusPaymentRequired, gin.H{"paid": false}) }, 402, `{"paid":false}`},
		"a redirect": {func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/orders/42") }, 303, ""},
		"a body, parsed": {func(c *gin.Context) {
			var v struct{ Amount int }
			_ = c.ShouldBindJSON(&v)
			c.String(200, "%d", v.Amount)
		}, 200, "7"},
	} {
		runs := 0
		e := gin.New()
		var see seen
		e.Use(func(c *gin.Context) {
			c.Next()
			see = seen{outcome: fmt.Sprint(c.Writer.Status(), " ", max(c.Writer.Size(), 0)), errors: c.Errors.Errors()}
		})
		e.POST("/orders/:id", ginlock.MustIdempotency(l, idempotency.NewMemory(), "{header.X-Tenant}"), func(c *gin.Context) {
			runs++
			tc.handler(c)
		})
		var first *httptest.ResponseRecorder
		for i := range 2 {
			w := pays(t, e, "k"+name[:1], `{"amount": 7}`)
			if w.Code != tc.code || !strings.HasPrefix(w.Body.String(), tc.body) || (w.Header().Get("Idempotency-Replayed") == "true") != (i == 1) {
				t.Errorf("%s, %d: %d %s %v", name, i, w.Code, w.Body, w.Header())
			}
			if first == nil {
				first = w
			} else if w.Body.String() != first.Body.String() || w.Header().Get("Content-Type") != first.Header().Get("Content-Type") || w.Header().Get("Location") != first.Header().Get("Location") {
				t.Errorf("%s: %v %s, and first %v %s", name, w.Header(), w.Body, first.Header(), first.Body)
			}
			if want := fmt.Sprint(tc.code, " ", w.Body.Len()); see.outcome != want || len(see.errors) > 0 {
				t.Errorf("%s, %d: a logger saw %+v, want %s", name, i, see, want)
			}
		}
		if runs != 1 {
			t.Errorf("%s: %d runs", name, runs)
		}
	}
}

func TestAFailureThatAMiddlewareOutsideWritesIsNotRemembered(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e := gin.New()
	e.Use(func(c *gin.Context) { // some services write the replies to all errors in one middleware
		c.Next()
		if len(c.Errors) > 0 && !c.Writer.Written() {
			c.String(http.StatusBadGateway, "sorry")
		}
	})
	runs := 0
	e.POST("/orders/:id", ginlock.MustIdempotency(l, idempotency.NewMemory(), "shop"), func(c *gin.Context) {
		if runs++; runs == 1 {
			_ = c.Error(errors.New("the bank does not answer"))
			return
		}
		ok(c)
	})
	for i, want := range []int{502, 200, 200} {
		if w := pays(t, e, "k", ""); w.Code != want {
			t.Errorf("%d: %d %s", i, w.Code, w.Body)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}

// The lock of the order is lost while its handler pays, and the response is held back for its
// idempotency key. The payment is not repeated: the next request gets the response.
func TestAHeldResponseOfALostLockIsReplacedAndAnswersTheNextRequest(t *testing.T) {
	store := lockertest.NewMemory()
	e := gin.New()
	validate := fromRules(t, lockertest.NewLocker(t, store), httplock.Rules{
		"POST /orders/:id": {Key: "order:{param.id}", Idempotency: "shop"},
	}, httplock.WithStore(idempotency.NewMemory())).Mount(e)
	runs := 0
	e.POST("/orders/:id", func(c *gin.Context) {
		if runs++; runs == 1 {
			store.Steal("order:42")
		}
		ok(c)
	})
	if err := validate(); err != nil {
		t.Fatal(err)
	}
	if w := pays(t, e, "k", "{}"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), httplock.CodeLost) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	store.Free("order:42")
	if w := pays(t, e, "k", "{}"); w.Code != http.StatusOK || w.Body.String() != "paid" || runs != 1 {
		t.Errorf("again: %d %s, %d runs", w.Code, w.Body, runs)
	}
}

// An error handler replies into the response that is held back.
func TestAnErrorHandlerRepliesToABusyLockInsideOfAHeldResponse(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:42", 0)
	e := gin.New()
	validate := fromRules(t, lockertest.NewLocker(t, store), httplock.Rules{
		"POST /orders/:id": {Key: "order:{param.id}", Idempotency: "shop", Wait: locker.NoWait},
	}, httplock.WithStore(idempotency.NewMemory()), ginlock.WithErrorHandler(func(c *gin.Context, p *httplock.Problem) {
		c.String(p.Status, p.Code)
	})).Mount(e)
	e.POST("/orders/:id", ok)
	if err := validate(); err != nil {
		t.Fatal(err)
	}
	if w := pays(t, e, "k", ""); w.Code != 409 || w.Body.String() != httplock.CodeBusy || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
	}
}
