package fiberlock_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/timeout"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// Fiber's timeout replies in its own goroutine when its time is over. The lock ends its wait, or
// its handler, at the same moment, and writes no second reply into the same response.
func TestATimeoutIsAnsweredOnce(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	store.Occupy("order:busy", 0)
	limit := timeout.Config{Timeout: 200 * time.Millisecond}
	app := fiber.New()
	obeys := func(c fiber.Ctx) error {
		<-c.Context().Done()
		return context.Cause(c.Context())
	}
	app.Post("/new/:id", timeout.New(fiberlock.MustNew(l, "order:{param.id}"), limit), obeys)
	app.Post("/once/:id", timeout.New(fiberlock.MustIdempotency(l, idempotency.NewMemory(), "order:{param.id}"), limit), obeys)
	s := start(t, app)
	var wg sync.WaitGroup
	for _, path := range []string{"/new/busy", "/new/free", "/once/free"} {
		for range 20 {
			wg.Go(func() {
				code, body, _ := s.send(t, path, "", "Idempotency-Key", "k")
				if code < 400 || strings.Contains(body, "{") {
					t.Errorf("%s: %d %s", path, code, body)
				}
			})
		}
	}
	wg.Wait()
}

// Inside of the lock, timeout gives the handler up, which may go on to write its response. The lock
// neither reads that response nor writes into it, and the request has failed.
func TestAHandlerThatTimeoutHasGivenUpHasNoResponse(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	for _, answers := range []error{nil, errBank} {
		app := fiber.New()
		runs, done := 0, make(chan struct{}, 2)
		app.Post("/once/:id", fiberlock.MustIdempotency(l, idempotency.NewMemory(), "order:{param.id}"), timeout.New(func(c fiber.Ctx) error {
			runs++
			<-c.Context().Done()
			done <- struct{}{}
			return nil
		}, timeout.Config{Timeout: 20 * time.Millisecond, OnTimeout: func(fiber.Ctx) error { return answers }}))
		s := start(t, app)
		for range 2 {
			if code, body, header := s.send(t, "/once/1", "", "Idempotency-Key", "k"); code < 400 || header.Get("Idempotency-Replayed") != "" {
				t.Errorf("%v: %d %s", answers, code, body)
			}
			<-done
		}
		if runs != 2 {
			t.Errorf("%v: %d runs", answers, runs)
		}
	}
}

// A middleware may also give a deadline in the request's own goroutine. Its error handler learns
// what became of the request.
func TestADeadlineOutsideOfTheLockHasAReply(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:busy", 0)
	for path, want := range map[string]int{"/orders/busy": http.StatusConflict, "/orders/free": http.StatusInternalServerError} {
		s := serve(t, fiberlock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}"), func(c fiber.Ctx) error {
			<-c.Context().Done()
			return errBank
		}, func(c fiber.Ctx) error {
			ctx, cancel := context.WithTimeout(c.Context(), 20*time.Millisecond)
			defer cancel()
			c.SetContext(ctx)
			err := c.Next()
			if !errors.Is(err, errBank) && path == "/orders/free" {
				t.Error(err)
			}
			return err
		})
		if code, body, _ := s.send(t, path, ""); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
}
