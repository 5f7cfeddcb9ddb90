package gormlock_test

import (
	"context"
	"log"

	"github.com/redis/go-redis/v9"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/locker"
)

func Example() {
	ctx := context.Background()
	pool, err := gorm.Open(postgres.Open("postgres://localhost/shop"))
	if err != nil {
		log.Fatal(err)
	}
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	db, err := gormlock.New(l, pool)
	if err != nil {
		log.Fatal(err)
	}
	if err := db.Migrate(ctx); err != nil { // a few small tables
		log.Fatal(err)
	}
	type Stock struct {
		SKU  string `gorm:"primaryKey"`
		Left int
	}
	err = db.Do(ctx, locker.Rule{Key: "sku:book"}, func(_ context.Context, tx *gorm.DB) error {
		return tx.Model(&Stock{SKU: "book"}).Update("left", gorm.Expr(`"left" - 1`)).Error
	})
	if err != nil {
		log.Fatal(err) // nothing was changed, unless it is sqllock.ErrCommitUnknown
	}
}
