package ginlock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func book(ctx context.Context, order string, fence uint64) error { return ctx.Err() }

// ship is a handler that works under its route's lock. Its work uses the context of the request, not
// Gin's own: only the request's context ends when the lock is lost.
func ship(c *gin.Context) {
	lease, _ := ginlock.FromContext(c)
	if err := book(c.Request.Context(), c.Param("id"), lease.Fence()); err != nil {
		_ = c.AbortWithError(http.StatusInternalServerError, err)
		return
	}
	c.Status(http.StatusNoContent)
}

func Example() {
	l, err := locker.Open("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	r := gin.Default()
	r.POST("/orders/:id/ship", ginlock.MustNew(l, "order:{param.id|int}"), ship)
}

// The reply to a refused request names the time after which the client should try again.
func ExampleNew_busy() {
	store := lockertest.NewMemory()
	store.Occupy("order:42", 1500*time.Millisecond) // another request holds the lock
	l, err := store.NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()

	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/orders/:id/pay", ginlock.MustNew(l, "order:{param.id|int}", httplock.WithWait(locker.NoWait)), func(c *gin.Context) {
		c.Status(http.StatusNoContent)
	})

	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/42/pay", http.NoBody))
	fmt.Println(w.Code, http.StatusText(w.Code))
	fmt.Println("Retry-After:", w.Header().Get("Retry-After"))
	// Output:
	// 409 Conflict
	// Retry-After: 1
}

// Refused requests get a reply in your own form, and only requests that change data take a lock.
func ExampleWithErrorHandler() {
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	r := gin.New()
	r.Use(ginlock.MustNew(l, "account:{header.X-Account|text}",
		ginlock.WithFilter(func(c *gin.Context) bool { return c.Request.Method != http.MethodGet }),
		ginlock.WithErrorHandler(func(c *gin.Context, p *httplock.Problem) {
			c.JSON(p.Status, gin.H{"error": p.Title, "retry_in_ms": p.RetryAfterMS})
		}),
	))
}

// Payments are made once: a second request within a day gets 409 with the code "already-done".
func ExampleWithRule() {
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	once := ginlock.WithRule(func(_ *gin.Context, rule *locker.Rule) { rule.OnceFor = 24 * time.Hour })
	r := gin.New()
	r.POST("/orders/:id/pay", ginlock.MustNew(l, "order:{param.id|int}", once), func(c *gin.Context) { c.Status(http.StatusNoContent) })
}

// One table has all locks of a service. A second payment of an order is refused for a day: at once
// while the first one runs, and with the code "already-done" afterwards.
func ExampleFromRules() {
	l, err := locker.Open("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	r := gin.New()
	guard, err := ginlock.FromRules(l, httplock.Rules{ // or ginlock.ParseRules, from JSON
		"POST /orders/:id/pay": {Key: "order:{param.id|int}", Wait: locker.NoWait, OnceFor: 24 * time.Hour},
		"PUT /baskets/:id":     {Keys: []httplock.Key{"basket:{param.id|int}", "stock:{body.items.*.sku|text}"}},
	})
	if err != nil {
		log.Fatal(err) // a line for each rule that cannot be meant
	}
	validate := guard.Mount(r) // before the first Group and route
	r.POST("/orders/:id/pay", payOrder)
	r.PUT("/baskets/:id", fillBasket)
	if err := validate(); err != nil { // after the last route
		log.Fatal(err)
	}
}

func payOrder(c *gin.Context)   { c.Status(http.StatusNoContent) }
func fillBasket(c *gin.Context) { c.Status(http.StatusNoContent) }

// Rules without a route are found when the program starts.
func ExampleGuard_Mount() {
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	guard, err := ginlock.FromRules(l, httplock.Rules{"PUT /baskets/:id": {Key: "basket:{param.id|int}"}})
	if err != nil {
		log.Fatal(err)
	}
	validate := guard.Mount(r)
	r.POST("/baskets/:id", fillBasket)
	fmt.Println(validate())
	// Output:
	// ginlock: rule "PUT /baskets/:id": there is no such route; did you mean "POST /baskets/:id"?
}

// Rules can also stand in a file.
func ExampleParseRules() {
	rules, err := ginlock.ParseRules([]byte(`{
		"POST /orders/:id/pay": {"key": "order:{param.id|int}", "wait": "250ms"}
	}`))
	if err != nil {
		log.Fatal(err)
	}
	rule := rules["POST /orders/:id/pay"]
	fmt.Println(rule.Key, rule.Wait)
	// Output: order:{param.id|int} 250ms
}

// A client repeats a payment because it got no reply. The repeated request gets the stored reply,
// and the payment is made once.
func ExampleMustIdempotency() {
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	store := idempotency.NewMemory() // idempotency.NewRedis(client) where there is more than one process
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(func(c *gin.Context) { c.Set("claims", map[string]any{"sub": "customer-7"}) })
	payments := 0
	pay := func(c *gin.Context) {
		payments++
		c.String(http.StatusCreated, "payment %d", payments)
	}
	claims := func(c *gin.Context) map[string]any { return c.GetStringMap("claims") } // of your authentication: no client chooses them
	once := ginlock.MustIdempotency(l, store, "{claim.sub}", ginlock.WithClaims(claims))
	r.POST("/payments", once, pay)
	for range 2 {
		req := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount": 7}`))
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		fmt.Printf("%d %s %q\n", w.Code, w.Body, w.Header().Get("Idempotency-Replayed"))
	}
	// Output:
	// 201 payment 1 ""
	// 201 payment 1 "true"
}
