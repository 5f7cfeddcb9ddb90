package sqlxlock_test

import (
	"context"
	"log"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/contrib/sqlxlock"
	"github.com/latchkit/latchkit/locker"
)

func Example() {
	ctx := context.Background()
	pool, err := sqlx.Open("pgx", "postgres://localhost/bank") // or another driver that sqllock knows
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlxlock.New(l, pool)
	if err != nil {
		log.Fatal(err)
	}
	if err := db.Migrate(ctx); err != nil { // a few small tables
		log.Fatal(err)
	}
	account := struct{ ID, Paid int }{42, 10}
	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.NamedExecContext(ctx, "UPDATE accounts SET paid = :paid WHERE id = :id", account)
		return err
	})
	if err != nil {
		log.Fatal(err) // nothing was changed, unless it is sqllock.ErrCommitUnknown
	}
}
