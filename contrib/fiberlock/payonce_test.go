package fiberlock_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// fasthttp sends the response when all handlers have returned. So the handler does not learn that
// its client has left.
func TestPaysOnceWhenTheClientLeaves(t *testing.T) {
	locktest.PaysOnce(t, false, func(t *testing.T, pay func(context.Context), receipt []byte) string {
		once := httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour })
		guard := fiberlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", once)
		s := serve(t, guard, func(c fiber.Ctx) error {
			pay(c.Context())
			return c.Status(http.StatusCreated).Send(receipt)
		})
		return s.addr
	})
}

// The function of WithSuccess gets the status of the handler's response.
func TestWithSuccessDecidesByTheStatusOfTheResponse(t *testing.T) {
	runs := 0
	s := serve(t, fiberlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}",
		httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour }),
		httplock.WithSuccess(func(_ *http.Request, status int) bool { return status < 300 })), func(c fiber.Ctx) error {
		if runs++; runs == 1 {
			return c.SendStatus(http.StatusPaymentRequired)
		}
		return c.SendStatus(http.StatusCreated)
	})
	for _, want := range []int{http.StatusPaymentRequired, http.StatusCreated, http.StatusConflict} {
		if code, body, _ := s.send(t, "/orders/1", ""); code != want {
			t.Errorf("%d %s, want %d", code, body, want)
		}
	}
}
