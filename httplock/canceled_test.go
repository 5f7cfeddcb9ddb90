package httplock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The server itself can end a request that waits. Its client is still there, and can try again.
func TestARequestThatTheServerEndsIsNoClientThatHasLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(ctx context.Context) context.Context
		code int
		want string
	}{
		"the client has left": {func(ctx context.Context) context.Context {
			ctx, end := context.WithCancel(ctx)
			end()
			return ctx
		}, 499, ""},
		"the server has a cause": {func(ctx context.Context) context.Context {
			ctx, end := context.WithCancelCause(ctx)
			end(errors.New("the budget of the request is used up"))
			return ctx
		}, http.StatusServiceUnavailable, httplock.CodeClosed},
		"a signal": {func(ctx context.Context) context.Context {
			ctx, stop := signal.NotifyContext(ctx, syscall.SIGUSR1)
			t.Cleanup(stop)
			if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			return ctx
		}, http.StatusServiceUnavailable, httplock.CodeClosed},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			store.Occupy("order:42", 0)
			h := shop(httplock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}"), paid)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(tc.end(t.Context()), "POST", "/orders/42", http.NoBody))
			again := w.Header().Get("Retry-After") != ""
			if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.want) || again != (tc.code == http.StatusServiceUnavailable) {
				t.Errorf("%d %s, %v", w.Code, w.Body, w.Header())
			}
		})
	}
}
