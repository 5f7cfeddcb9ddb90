package ginlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
)

func TestAShutdownCutsNoRequestThatHoldsItsLock(t *testing.T) {
	locktest.CheckShutdown(t, func(l locker.Locker, work func(context.Context) error) locktest.Stopping {
		e := gin.New()
		e.POST("/orders/:id", ginlock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Minute)), func(c *gin.Context) {
			if err := work(c.Request.Context()); err != nil {
				c.String(http.StatusInternalServerError, err.Error())
			}
		})
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
		e := gin.New()
		e.POST("/orders/:id", ginlock.MustNew(l, "order:{param.id}"), func(c *gin.Context) { c.String(http.StatusOK, "paid") })
		s := httptest.NewServer(e)
		t.Cleanup(s.Close)
		return s.Client(), s.URL + "/orders/42"
	})
}
