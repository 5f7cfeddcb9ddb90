// Command sql-gorm takes one item from a stock on PostgreSQL with GORM, through gormlock.
//
//	go run ./examples/sql-gorm -dsn postgres://localhost/shop -redis redis://localhost:6379
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
	"github.com/latchkit/latchkit/sqllock"
)

// Stock is the number of remaining items of an article.
type Stock struct {
	SKU      string `gorm:"primaryKey"`
	LeftOver int
}

// take takes one item from the stock and returns how many are left.
func take(ctx context.Context, db *sqllock.Handle[*gorm.DB], sku string) (left int, err error) {
	err = db.Do(ctx, locker.Rule{Key: "sku:" + sku}, func(ctx context.Context, tx *gorm.DB) error {
		var stock Stock
		if err := tx.First(&stock, "sku = ?", sku).Error; err != nil {
			return err
		}
		stock.LeftOver--
		left = stock.LeftOver
		return tx.Save(&stock).Error
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
	shop, err := gorm.Open(postgres.Open(dsn), &gorm.Config{})
	if err != nil {
		return err
	}
	pool, err := shop.DB()
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := gormlock.New(l, shop)
	if err != nil {
		return err
	}
	if err := db.Migrate(ctx); err != nil {
		return err
	}
	if err := shop.AutoMigrate(&Stock{}); err != nil {
		return err
	}
	if err := shop.Clauses(clause.OnConflict{DoNothing: true}).Create(&Stock{SKU: "book", LeftOver: 100}).Error; err != nil {
		return err
	}
	left, err := take(ctx, db, "book")
	if err == nil {
		fmt.Println(left, "books are left")
	}
	return err
}
