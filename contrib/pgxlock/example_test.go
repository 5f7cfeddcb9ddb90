package pgxlock_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

func ExampleDo() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	if err := sqllock.Migrate(ctx, stdlib.OpenDBFromPool(pool)); err != nil { // two small tables
		log.Fatal(err)
	}
	err = pgxlock.Do(ctx, l, pool, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *pgxlock.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42")
		return err
	})
	if err != nil {
		log.Fatal(err) // nothing was changed, unless it is sqllock.ErrCommitUnknown
	}
}
