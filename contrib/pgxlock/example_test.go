package pgxlock_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/locker"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	db, err := pgxlock.New(l, pool)
	if err != nil {
		log.Fatal(err)
	}
	if err := db.Migrate(ctx); err != nil { // a few small tables
		log.Fatal(err)
	}
	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42")
		return err
	})
	if err != nil {
		log.Fatal(err) // nothing was changed, unless it is sqllock.ErrCommitUnknown
	}
}
