package fiberlock_test

import (
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestAClientThatLeavesWaitsNoMore(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:1", 0)
	codes := make(chan string, 1)
	s := serve(t, fiberlock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}", httplock.WithWait(time.Hour)),
		func(fiber.Ctx) error { t.Error("the handler ran"); return nil },
		func(c fiber.Ctx) error {
			err := c.Next()
			if p, ok := fiberlock.Outcome(c); ok {
				codes <- p.Code
			}
			return err
		})
	_ = s.dial(t, "POST /orders/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\nPOST").Close()
	select {
	case code := <-codes:
		if code != httplock.CodeClientGone {
			t.Error(code)
		}
	case <-time.After(30 * time.Second):
		t.Error("the request still waits")
	}
}
