package echolock_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func once(t *testing.T) echo.MiddlewareFunc {
	t.Helper()
	return echolock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}",
		httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour }))
}

// Echo returns the error of a write as it returns an error of the handler.
func TestPaysOnceWhenTheClientLeaves(t *testing.T) {
	locktest.PaysOnce(t, true, func(t *testing.T, pay func(context.Context), receipt []byte) string {
		server := serve(t, once(t), func(c echo.Context) error {
			pay(c.Request().Context())
			return c.Blob(http.StatusCreated, "text/plain", receipt)
		})
		return server.Listener.Addr().String()
	})
}

// Once a status was written, it decides. Before that, an error is a failure, whatever status the
// error handler of the server writes for it.
func TestAnErrorIsAFailureOnlyBeforeTheStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		reply func(c echo.Context) error
		code  int
	}{
		"an error below 400":  {func(echo.Context) error { return echo.NewHTTPError(http.StatusAccepted) }, http.StatusOK},
		"a body":              {func(c echo.Context) error { return errors.Join(c.String(http.StatusCreated, "paid"), errBank) }, http.StatusConflict},
		"a body of a failure": {func(c echo.Context) error { return errors.Join(c.String(http.StatusBadGateway, "no"), errBank) }, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			server := serve(t, once(t), func(c echo.Context) error {
				if runs++; runs == 1 {
					return tc.reply(c)
				}
				return c.String(http.StatusOK, "paid")
			})
			send(t, server, "/orders/42", "{}")
			if code, body, _ := send(t, server, "/orders/42", "{}"); code != tc.code {
				t.Errorf("again: %d %s, %d runs", code, body, runs)
			}
		})
	}
}
