package echolock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A route of Echo 4 handles one request per order at a time.
func Example() {
	store := lockertest.NewMemory()
	l, err := store.NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	store.Occupy("order:43", 1500*time.Millisecond) // another holder has order 43

	e := echo.New()
	lock := echolock.MustNew(l, "order:{param.id|int}", httplock.WithWait(locker.NoWait))
	e.POST("/orders/:id/pay", func(c echo.Context) error {
		lease, _ := echolock.FromContext(c) // c.Request().Context() ends if the lock is lost
		return c.String(http.StatusOK, "paid under "+lease.Key())
	}, lock)

	for _, path := range []string{"/orders/42/pay", "/orders/43/pay"} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, http.NoBody))
		fmt.Printf("%d, Retry-After %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200, Retry-After ""
	// 409, Retry-After "1"
}
