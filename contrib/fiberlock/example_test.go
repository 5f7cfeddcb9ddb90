package fiberlock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A route of Fiber 3 handles one request per order at a time.
func Example() {
	store := lockertest.NewMemory()
	l, err := store.NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	store.Occupy("order:43", 1500*time.Millisecond) // another holder has order 43

	app := fiber.New()
	lock := fiberlock.MustNew(l, "order:{param.id|int}", httplock.WithWait(locker.NoWait))
	app.Post("/orders/:id/pay", lock, func(c fiber.Ctx) error {
		lease, _ := fiberlock.FromContext(c) // c.Context() ends if the lock is lost
		return c.SendString("paid under " + lease.Key())
	})

	for _, path := range []string{"/orders/42/pay", "/orders/43/pay"} {
		r, err := app.Test(httptest.NewRequest(http.MethodPost, path, http.NoBody))
		if err != nil {
			log.Fatal(err)
		}
		_ = r.Body.Close()
		fmt.Printf("%d, Retry-After %q\n", r.StatusCode, r.Header.Get("Retry-After"))
	}
	// Output:
	// 200, Retry-After ""
	// 409, Retry-After "1"
}
