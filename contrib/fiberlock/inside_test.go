package fiberlock_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// transactor is a Store whose transactions do nothing.
type transactor struct{ idempotency.Store }

func (transactor) Transact(ctx context.Context, work func(ctx context.Context) error) error {
	return work(ctx)
}

// A lock inside of the transaction of an answer would be released before the COMMIT.
func TestALockInsideOfATransactionIsRefused(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	once, order := fiberlock.MustIdempotency(l, transactor{idempotency.NewMemory()}, "shop"), fiberlock.MustNew(l, "order:{param.id|int}")
	paid := func(c fiber.Ctx) error { return c.SendStatus(fiber.StatusCreated) }
	app := fiber.New()
	app.Post("/inside/:id", once, order, paid)
	app.Post("/outside/:id", order, once, paid)
	for path, want := range map[string]int{"/inside/42": 500, "/outside/42": 201} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", path, nil)
		r.Header.Set("Idempotency-Key", path)
		resp, err := app.Test(r)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}
