package fiberlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
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

// Fiber's own response has no status yet when a lock inside refuses, and is sent after all handlers.
func TestALockInsideOfAHeldResponseIsBusyAndThenLost(t *testing.T) {
	store := lockertest.NewMemory()
	g, err := fiberlock.FromRules(lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond)), httplock.Rules{"POST /:id": {Key: "order:{param.id|int}", Idempotency: "shop", Wait: locker.NoWait}},
		httplock.WithStore(idempotency.NewMemory()), httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour }))
	if err != nil {
		t.Fatal(err)
	}
	app := fiber.New()
	g.Handle(app, "POST /:id", func(c fiber.Ctx) error {
		store.Steal("order:42")
		<-c.Context().Done()
		return c.Send(make([]byte, 100<<10))
	})
	store.Occupy("order:42", 0)
	for _, want := range []int{409, 503} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/42", nil)
		r.Header.Set("Idempotency-Key", "k")
		resp, err := app.Test(r, fiber.TestConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%d, want %d", resp.StatusCode, want)
		}
		store.Free("order:42")
	}
}
