// Command sql-pgx takes one item from a stock on PostgreSQL with pgx, without database/sql.
//
//	go run ./examples/sql-pgx -dsn postgres://localhost/shop -redis redis://localhost:6379
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
	"github.com/latchkit/latchkit/sqllock"
)

// take takes one item from the stock and returns how many are left.
func take(ctx context.Context, db *sqllock.Handle[pgx.Tx], sku string) (left int, err error) {
	err = db.Do(ctx, locker.Rule{Key: "sku:" + sku}, func(ctx context.Context, tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT left_over FROM stock WHERE sku = $1", sku).Scan(&left); err != nil {
			return err
		}
		left--
		_, err := tx.Exec(ctx, "UPDATE stock SET left_over = $1 WHERE sku = $2", left, sku)
		return err
	})
	return left, err
}

func main() {
	dsn := flag.String("dsn", "postgres://localhost/shop", "the PostgreSQL")
	url := flag.String("redis", "redis://localhost:6379", "the Redis")
	flag.Parse()
	if err := run(context.Background(), *dsn, *url); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dsn, url string) error {
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	options.ContextTimeoutEnabled = true
	observer, err := otellock.New()
	if err != nil {
		return err
	}
	l, err := locker.New(redis.NewClient(options), locker.WithObserver(observer)) // this option turns tracing on
	if err != nil {
		return err
	}
	defer func() { _ = l.Close(ctx) }()
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := pgxlock.New(l, pool)
	if err != nil {
		return err
	}
	if err := db.Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, left_over integer NOT NULL)"); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "INSERT INTO stock VALUES ('book', 100) ON CONFLICT DO NOTHING"); err != nil {
		return err
	}
	left, err := take(ctx, db, "book")
	if err == nil {
		fmt.Println(left, "books are left")
	}
	return err
}
