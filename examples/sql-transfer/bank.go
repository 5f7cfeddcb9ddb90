package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"net/url"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite", in pure Go

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
	"github.com/latchkit/latchkit/sqllock"
)

var (
	//go:embed sql/schema.sql
	schema string
	//go:embed sql/fill.sql
	fill string
	//go:embed sql/read.sql
	readBalance string
	//go:embed sql/write.sql
	writeBalance string
)

// A bank keeps accounts. A transfer reads balances, computes new balances from them, and writes the
// new balances. So two transfers of one account must not overlap.
type bank struct {
	pool *sql.DB
	l    *locker.Engine
	db   *sqllock.DB // runs transactions on the pool, under locks of l
}

// openBank opens the bank whose accounts are in the file and whose locks are on client's Redis.
func openBank(ctx context.Context, file string, client *redis.Client) (*bank, error) {
	pool, err := sql.Open("sqlite", "file:"+(&url.URL{Path: file}).EscapedPath()+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return nil, err
	}
	b, err := newBank(pool, client)
	if err != nil {
		return nil, err
	}
	if err := b.db.Migrate(ctx); err != nil { // creates the tables of fences and operations
		return nil, err
	}
	for _, statement := range []string{schema, fill} {
		if _, err := pool.ExecContext(ctx, statement); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func newBank(pool *sql.DB, client *redis.Client) (*bank, error) {
	observer, err := otellock.New()
	if err != nil {
		return nil, err
	}
	l, err := locker.New(client, locker.WithObserver(observer)) // this turns tracing on, for the transactions too
	if err != nil {
		return nil, err
	}
	db, err := sqllock.New(l, pool)
	return &bank{pool, l, db}, err
}

// branch returns the same bank with another Locker. It stands for another process of the bank.
func (b *bank) branch(client *redis.Client) (*bank, error) {
	return newBank(b.pool, client)
}

func (b *bank) close(ctx context.Context) { _, _ = b.l.Close(ctx), b.pool.Close() }

var errNotEnough = errors.New("the balance of the account is too low")

// transfer moves cents from one account to another. It locks both accounts, always in the order of
// their names.
func (b *bank) transfer(ctx context.Context, from, to string, cents int64) error {
	return b.db.DoAll(ctx, both(from, to), move(from, to, cents))
}

// transferLate is transfer by a holder that is delayed between its locks and its transaction.
// During the delay, it calls meanwhile.
func (b *bank) transferLate(ctx context.Context, from, to string, cents int64, meanwhile func()) error {
	return locker.RunAll(ctx, b.l, both(from, to), func(ctx context.Context) error {
		meanwhile()
		return b.db.Within(ctx, move(from, to, cents))
	})
}

func both(from, to string) []locker.Rule {
	return []locker.Rule{{Key: "account:" + from}, {Key: "account:" + to}}
}

// move returns the work of a transfer.
func move(from, to string, cents int64) func(ctx context.Context, tx *sqllock.Tx) error {
	return func(ctx context.Context, tx *sqllock.Tx) error {
		has, err := balance(ctx, tx, from)
		if err != nil {
			return err
		}
		gets, err := balance(ctx, tx, to)
		if err != nil {
			return err
		}
		if has < cents {
			return errNotEnough
		}
		if _, err := tx.ExecContext(ctx, writeBalance, has-cents, from); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, writeBalance, gets+cents, to)
		return err
	}
}

// querier is either a transaction of sqllock or the database itself.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func balance(ctx context.Context, q querier, name string) (cents int64, err error) {
	err = q.QueryRowContext(ctx, readBalance, name).Scan(&cents)
	return cents, err
}
