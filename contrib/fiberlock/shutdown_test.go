package fiberlock_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
)

func TestAShutdownCutsNoRequestThatHoldsItsLock(t *testing.T) {
	locktest.CheckShutdown(t, func(l locker.Locker, work func(context.Context) error) locktest.Stopping {
		app := fiber.New()
		app.Post("/orders/:id", fiberlock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Minute)), func(c fiber.Ctx) error {
			if err := work(c.Context()); err != nil {
				return err
			}
			return c.SendStatus(fiber.StatusOK)
		})
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
		client := &http.Client{Transport: &http.Transport{}}
		return locktest.Stopping{
			Send: func(ctx context.Context, key string) string {
				return locktest.Post(ctx, client, "http://"+listener.Addr().String()+"/orders/"+key)
			},
			Stop: func(ctx context.Context) error {
				client.CloseIdleConnections()
				if err := app.ShutdownWithContext(ctx); err != nil {
					return err
				}
				return <-served
			},
		}
	})
}

func TestAClientThatMeetsADrainSendsItsNextRequestOverAnotherConnection(t *testing.T) {
	locktest.CheckARefusedClientReconnects(t, func(l locker.Locker) (*http.Client, string) {
		s := serve(t, fiberlock.MustNew(l, "order:{param.id}"), func(c fiber.Ctx) error { return c.SendString("paid") })
		return s.client, "http://" + s.addr + "/orders/42"
	})
}
