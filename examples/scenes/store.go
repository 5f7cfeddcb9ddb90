package main

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"net/url"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite", in pure Go

	"github.com/latchkit/latchkit/sqllock"
)

var (
	//go:embed sql/schema.sql
	schema string
	//go:embed sql/stock_fill.sql
	stockFill string
	//go:embed sql/stock_claim.sql
	stockClaim string
	//go:embed sql/stock_read.sql
	stockRead string
	//go:embed sql/stock_write.sql
	stockWrite string
	//go:embed sql/stock_clear.sql
	stockClear string
	//go:embed sql/order_add.sql
	orderAdd string
	//go:embed sql/order_count.sql
	orderCount string
	//go:embed sql/order_clear.sql
	orderClear string
)

// A store is the shop's database. It has the stock of each article, and a list of orders. The
// number of orders is the number of sold items, even if the stock is wrong.
type store struct{ db *sql.DB }

// openStore opens dsn: a PostgreSQL URL, or else the path of an SQLite file.
func openStore(ctx context.Context, dsn string) (*store, error) {
	driver, name := "pgx", "the PostgreSQL of -dsn" // the message does not contain the URL, which may have a password
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		driver, name, dsn = "sqlite", dsn, sqliteURL(dsn)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	// A few connections are enough for many handlers, because no handler keeps a connection
	// between its read and its write.
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return &store{db}, nil
}

// sqliteURL returns a URL that configures SQLite for several processes. With WAL, readers and a
// writer work at the same time. A process that finds the file busy waits. The orders need not
// survive a power cut, so no write waits for the disk.
func sqliteURL(path string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
}

func (s *store) close() error { return s.db.Close() }

// migrate creates the tables, unless they exist. PostgreSQL refuses a CREATE TABLE IF NOT EXISTS
// while another program creates the same table. At the second try, the table exists.
func (s *store) migrate(ctx context.Context) (err error) {
	for range 2 {
		if _, err = s.db.ExecContext(ctx, schema+query("schema")); err == nil {
			return nil
		}
	}
	return fmt.Errorf("create the tables: %w", err)
}

// fill puts items of an article into the stock.
func (s *store) fill(ctx context.Context, sku string, items int) error {
	if _, err := s.db.ExecContext(ctx, stockFill, sku, items); err != nil {
		return fmt.Errorf("fill the stock: %w", err)
	}
	return nil
}

// stock returns how many items are left, to the holder of a lock with this fence. The row keeps the
// fence, and so refuses what an earlier holder writes later. Without a lock the fence is 0.
func (s *store) stock(ctx context.Context, sku string, fence uint64) (left int, err error) {
	if fence != 0 {
		if err := sqllock.FencedUpdate(ctx, s.db, stockClaim, sku, int64(fence)); err != nil {
			return 0, err
		}
	}
	err = s.db.QueryRowContext(ctx, stockRead, sku).Scan(&left)
	return left, err
}

// sell writes newStock, the remaining stock, and an order of buyer, in one transaction. So the
// database keeps both writes or no write. The transaction alone does not prevent overselling,
// because the shop has computed newStock from a stock that it had read before the transaction.
func (s *store) sell(ctx context.Context, sku string, buyer, newStock int, fence uint64) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // Rollback does nothing after Commit
	if err := sqllock.FencedUpdate(ctx, tx, stockWrite, sku, newStock, int64(fence)); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, orderAdd, sku, buyer); err != nil {
		return err
	}
	return tx.Commit()
}

// sold counts the orders.
func (s *store) sold(ctx context.Context, sku string) (n int, err error) {
	err = s.db.QueryRowContext(ctx, orderCount, sku).Scan(&n)
	return n, err
}

// clear removes the rows of a sale.
func (s *store) clear(ctx context.Context, sku string) error {
	for _, query := range []string{stockClear, orderClear} {
		if _, err := s.db.ExecContext(ctx, query, sku); err != nil {
			return err
		}
	}
	return nil
}
