// Command sql-pgx takes one order from a stock on PostgreSQL with pgx itself, without database/sql: DoWith needs the few lines
// of tx.
//
//	go run ./examples/sql-pgx -dsn postgres://localhost/shop -redis redis://localhost:6379
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// tx is a transaction of pgx as sqllock wants it.
type tx struct{ pgx.Tx }

func (t tx) Exec(ctx context.Context, query string, args ...any) error {
	_, err := t.Tx.Exec(ctx, query, args...)
	return err
}

func (t tx) Row(ctx context.Context, query string, args []any, dest ...any) error {
	return t.QueryRow(ctx, query, args...).Scan(dest...)
}

var levels = map[sql.IsolationLevel]pgx.TxIsoLevel{
	sql.LevelReadCommitted: pgx.ReadCommitted, sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelSerializable: pgx.Serializable,
}

// database begins transactions in pool.
func database(pool *pgxpool.Pool) sqllock.Database[tx] {
	return sqllock.Database[tx]{
		Dialect: sqllock.Postgres,
		Begin: func(ctx context.Context, opts *sql.TxOptions) (tx, error) {
			var o pgx.TxOptions
			if opts != nil && opts.Isolation != sql.LevelDefault {
				level, ok := levels[opts.Isolation]
				if !ok {
					return tx{}, fmt.Errorf("PostgreSQL has no isolation %v", opts.Isolation)
				}
				o.IsoLevel = level
			}
			if opts != nil && opts.ReadOnly {
				o.AccessMode = pgx.ReadOnly
			}
			t, err := pool.BeginTx(ctx, o)
			return tx{t}, err
		},
	}
}

// take takes one item from the stock and says how many are left.
func take(ctx context.Context, l locker.Locker, pool *pgxpool.Pool, sku string) (left int, err error) {
	err = sqllock.DoWith(ctx, l, database(pool), locker.Rule{Key: "sku:" + sku}, func(ctx context.Context, t tx) error {
		if err := t.QueryRow(ctx, "SELECT left_over FROM stock WHERE sku = $1", sku).Scan(&left); err != nil {
			return err
		}
		left--
		return t.Exec(ctx, "UPDATE stock SET left_over = $1 WHERE sku = $2", left, sku)
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
	l, err := locker.NewSingle(redis.NewClient(options))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close(ctx) }()
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := sqllock.Migrate(ctx, stdlib.OpenDBFromPool(pool)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, left_over integer NOT NULL)"); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "INSERT INTO stock VALUES ('book', 100) ON CONFLICT DO NOTHING"); err != nil {
		return err
	}
	left, err := take(ctx, l, pool, "book")
	if err == nil {
		fmt.Println(left, "books are left")
	}
	return err
}
