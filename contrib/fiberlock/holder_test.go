package fiberlock_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The Locker's error names the holder, for operators. No client may see the name.
func TestAReplyDoesNotNameTheHolder(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithMetadata(func(context.Context) string { return "report@pod-7f9c:1" }))
	lease, err := l.Acquire(t.Context(), locker.Rule{Key: "order:42"})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, fiberlock.MustNew(l, "order:{param.id}", httplock.WithWait(locker.NoWait)), func(fiber.Ctx) error { return nil })
	status, body, header := s.send(t, "/orders/42", "")
	if shown := fmt.Sprint(body, header); status != http.StatusConflict || strings.Contains(shown, "report") || strings.Contains(shown, "7f9c") {
		t.Errorf("the reply is %d %s", status, shown)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
