package otellock_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/labstack/echo/v4"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/contrib/sqlxlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
)

// contribGuards are the adapters of contrib. The adapters for schedules are tested in
// ticks_test.go.
var contribGuards = map[string]func(t *testing.T, l *locker.Engine, work func(ctx context.Context)){
	"echolock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		e := echo.New()
		lock := echolock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(time.Minute))
		e.POST("/", func(c echo.Context) error { work(c.Request().Context()); return nil }, lock)
		e.ServeHTTP(httptest.NewRecorder(), posted(t))
	},
	"fiberlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		app := fiber.New()
		lock := fiberlock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(time.Minute))
		app.Post("/", lock, func(c fiber.Ctx) error { work(c.Context()); return nil })
		reply, err := app.Test(posted(t), fiber.TestConfig{Timeout: 0})
		if err != nil {
			t.Error(err)
			return
		}
		_ = reply.Body.Close()
	},
	"gormlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		db, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: stdlib.OpenDB(*schema(t))}), &gorm.Config{Logger: logger.Discard})
		if err != nil {
			t.Error(err)
			return
		}
		pool, _ := db.DB()
		defer func() { _ = pool.Close() }()
		h, err := gormlock.New(l, db)
		transact(t, h, err, work)
	},
	"pgxlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		db, err := pgx.ConnectConfig(t.Context(), schema(t))
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = db.Close(context.Background()) }()
		h, err := pgxlock.New(l, db)
		transact(t, h, err, work)
	},
	"sqlxlock": func(t *testing.T, l *locker.Engine, work func(context.Context)) {
		db, err := sqlx.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "canary.db")+"?_pragma=busy_timeout(1000)")
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = db.Close() }()
		h, err := sqlxlock.New(l, db)
		transact(t, h, err, work)
	},
}

// schema makes a new schema on the shared PostgreSQL server.
func schema(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(sqltest.Shared(t, sqltest.Postgres).DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.Background()) }()
	name := fmt.Sprintf("seen_%d", schemas.Add(1))
	if _, err := db.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = name
	return config
}

var schemas atomic.Int64
