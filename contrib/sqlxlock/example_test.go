package sqlxlock_test

import (
	"context"
	"log"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/contrib/sqlxlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

func ExampleDo() {
	ctx := context.Background()
	db, err := sqlx.Open("pgx", "postgres://localhost/bank") // or another driver that sqllock knows
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	if err := sqllock.Migrate(ctx, db); err != nil { // two small tables
		log.Fatal(err)
	}
	account := struct{ ID, Paid int }{42, 10}
	err = sqlxlock.Do(ctx, l, db, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *sqlxlock.Tx) error {
		_, err := tx.NamedExecContext(ctx, "UPDATE accounts SET paid = :paid WHERE id = :id", account)
		return err
	})
	if err != nil {
		log.Fatal(err) // nothing was changed, unless it is sqllock.ErrCommitUnknown
	}
}
