package httplock_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// After a pause, no look at the context of a handler says that it is alive. Here the clock of the
// bubble jumps to the end of the lease, and the handler runs before or after the goroutine that
// ends the context.
func TestALookAtTheHandlersContextEndsARequestWhoseTimeIsOver(t *testing.T) {
	for kind, lock := range map[string]func(l locker.Locker) func(http.Handler) http.Handler{
		"MustNew": func(l locker.Locker) func(http.Handler) http.Handler {
			return httplock.MustNew(l, "order:{param.id}", httplock.WithTTL(time.Second))
		},
		"MustIdempotency": func(l locker.Locker) func(http.Handler) http.Handler {
			return httplock.MustIdempotency(l, idempotency.NewMemory(), "shop", httplock.WithTTL(time.Second))
		},
	} {
		for name, look := range locktest.Looks {
			t.Run(kind+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithoutRenewal())
					h := shop(lock(l), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						lease, _ := httplock.FromContext(r)
						time.Sleep(time.Until(lease.Expires())) //nolint:forbidigo // a bubble
						if !look(r.Context()) {
							t.Error("the context says that the key is held")
						}
					}))
					for range 50 {
						send(t.Context(), h, "POST", "/orders/42", "", "Idempotency-Key", "k")
					}
				})
			})
		}
	}
}
