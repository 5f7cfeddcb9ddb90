package otellock_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/jmoiron/sqlx"
	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/contrib/sqlxlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// contribGuards are the adapters in modules of their own.
var contribGuards = map[string]func(t *testing.T, l *locker.Engine, work func(ctx context.Context)){
	"echolock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		e := echo.New()
		lock := echolock.New(l, "order:{header.X-Order}", httplock.WithWait(time.Minute))
		e.POST("/", func(c echo.Context) error { work(c.Request().Context()); return nil }, lock)
		e.ServeHTTP(httptest.NewRecorder(), posted(t))
	},
	"fiberlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		app := fiber.New()
		lock := fiberlock.New(l, "order:{header.X-Order}", httplock.WithWait(time.Minute))
		app.Post("/", lock, func(c fiber.Ctx) error { work(c.Context()); return nil })
		reply, err := app.Test(posted(t), fiber.TestConfig{Timeout: 0})
		if err != nil {
			t.Error(err)
			return
		}
		_ = reply.Body.Close()
	},
	"sqlxlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		db, err := sqlx.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "canary.db")+"?_pragma=busy_timeout(1000)")
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = db.Close() }()
		if err := sqllock.Migrate(t.Context(), db); err != nil {
			t.Error(err)
		}
		err = sqlxlock.Do(t.Context(), l, db, locker.Rule{Key: secret, Wait: time.Minute},
			func(ctx context.Context, _ *sqlxlock.Tx) error { work(ctx); return nil })
		if err != nil && !errors.Is(err, locker.ErrLost) {
			t.Error(err)
		}
	},
}
