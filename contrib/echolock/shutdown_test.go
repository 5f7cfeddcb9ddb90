package echolock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
)

func TestAShutdownCutsNoRequestThatHoldsItsLock(t *testing.T) {
	locktest.CheckShutdown(t, func(l locker.Locker, work func(context.Context) error) locktest.Stopping {
		e := echo.New()
		e.POST("/orders/:id", func(c echo.Context) error {
			if err := work(c.Request().Context()); err != nil {
				return err
			}
			return c.NoContent(http.StatusOK)
		}, echolock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Minute)))
		s := httptest.NewServer(e)
		t.Cleanup(s.Close)
		return locktest.Stopping{
			Send: func(ctx context.Context, key string) string {
				return locktest.Post(ctx, s.Client(), s.URL+"/orders/"+key)
			},
			Stop: s.Config.Shutdown,
		}
	})
}

func TestAClientThatMeetsADrainSendsItsNextRequestOverAnotherConnection(t *testing.T) {
	locktest.CheckARefusedClientReconnects(t, func(l locker.Locker) (*http.Client, string) {
		s := serve(t, echolock.MustNew(l, "order:{param.id}"), func(c echo.Context) error { return c.String(http.StatusOK, "paid") })
		return s.Client(), s.URL + "/orders/42"
	})
}
