// Package gormlock runs GORM transactions under locks, as package sqllock does for database/sql.
// The transaction that does the work also claims the fence of each lease, so a stale holder commits
// nothing.
//
//	rule := locker.Rule{Key: "sku:book"}
//	err := gormlock.Do(ctx, l, db, rule, func(ctx context.Context, tx *gorm.DB) error {
//		return tx.Model(&Stock{SKU: "book"}).Update("left_over", gorm.Expr("left_over - 1")).Error
//	})
//
// The function gets a complete *gorm.DB, whose statements go through sqllock's Tx. The Tx remembers
// an error that ends the transaction, such as a deadlock on MySQL, even if the function ignores the
// error. After such an error, later statements are not committed. [sqllock.ClaimFromContext]
// returns the claim.
//
// Results, options and dialects are the same as in package sqllock. [Migrate] creates the tables.
package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// Do acquires the lock that rule describes, begins a transaction, claims the lease's fence in it,
// calls fn, commits, and releases the lock. See [sqllock.Do].
func Do(
	ctx context.Context, l locker.Locker, db *gorm.DB, rule locker.Rule,
	fn func(ctx context.Context, tx *gorm.DB) error, opts ...sqllock.Option,
) error {
	pool, opts, err := open(db, fn, opts)
	if err != nil {
		return err
	}
	return sqllock.Do(ctx, l, pool, rule, withSession(db, fn), opts...)
}

// DoAll is [Do] for several locks. See [sqllock.DoAll].
func DoAll(
	ctx context.Context, l locker.Locker, db *gorm.DB, rules []locker.Rule,
	fn func(ctx context.Context, tx *gorm.DB) error, opts ...sqllock.Option,
) error {
	pool, opts, err := open(db, fn, opts)
	if err != nil {
		return err
	}
	return sqllock.DoAll(ctx, l, pool, rules, withSession(db, fn), opts...)
}

// Within does the work of [Do] under every lease that ctx has already. See [sqllock.Within].
func Within(
	ctx context.Context, db *gorm.DB, fn func(ctx context.Context, tx *gorm.DB) error, opts ...sqllock.Option,
) error {
	pool, opts, err := open(db, fn, opts)
	if err != nil {
		return err
	}
	return sqllock.Within(ctx, pool, withSession(db, fn), opts...)
}

// WithinAll does the work of [Within] for the leases of ctx with these keys. See
// [sqllock.WithinAll].
func WithinAll(
	ctx context.Context, db *gorm.DB, keys []string,
	fn func(ctx context.Context, tx *gorm.DB) error, opts ...sqllock.Option,
) error {
	pool, opts, err := open(db, fn, opts)
	if err != nil {
		return err
	}
	return sqllock.WithinAll(ctx, pool, keys, withSession(db, fn), opts...)
}

// InTx claims every lease of ctx in a transaction that db.Begin or db.Transaction has begun. The
// code that began the transaction ends it. See [sqllock.InTx].
func InTx(ctx context.Context, tx *gorm.DB, opts ...sqllock.Option) (*sqllock.Claim, error) {
	d, err := dialectOf(tx)
	if err != nil {
		return nil, err
	}
	begun, ok := transactionOf(tx.Statement.ConnPool)
	if !ok {
		return nil, fmt.Errorf("%w: gormlock.InTx: %T is not an open transaction; begin one with db.Transaction",
			locker.ErrUnsupported, tx.Statement.ConnPool)
	}
	return sqllock.InTx(ctx, d, begun, opts...)
}

// transactionOf returns the transaction of database/sql that GORM has begun. The transaction may
// have been begun with or without PrepareStmt.
func transactionOf(p gorm.ConnPool) (*sql.Tx, bool) {
	if prepared, ok := p.(*gorm.PreparedStmtTX); ok {
		p = prepared.Tx
	}
	tx, ok := p.(*sql.Tx)
	return tx, ok
}

// Migrate creates the tables that are missing. See [sqllock.Migrate].
func Migrate(ctx context.Context, db *gorm.DB, opts ...sqllock.Option) error {
	pool, opts, err := open(db, func(context.Context, *gorm.DB) error { return nil }, opts)
	if err != nil {
		return err
	}
	return sqllock.Migrate(ctx, pool, opts...)
}

// open returns the pool of db, and opts together with the dialect of db. It checks fn and db.
func open(
	db *gorm.DB, fn func(context.Context, *gorm.DB) error, opts []sqllock.Option,
) (*sql.DB, []sqllock.Option, error) {
	if fn == nil {
		return nil, nil, errors.New("gormlock: the function is nil")
	}
	d, err := dialectOf(db)
	if err != nil {
		return nil, nil, err
	}
	if _, ok := db.Statement.ConnPool.(gorm.TxCommitter); ok {
		return nil, nil, fmt.Errorf("%w: gormlock: db is already a transaction; claim in it with gormlock.InTx", locker.ErrUnsupported)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	return pool, append([]sqllock.Option{sqllock.WithDialect(d)}, opts...), nil
}

var dialects = map[string]sqllock.Dialect{
	"postgres": sqllock.Postgres, "mysql": sqllock.MySQL, "sqlite": sqllock.SQLite,
}

func dialectOf(db *gorm.DB) (sqllock.Dialect, error) {
	if db == nil || db.Config == nil || db.Dialector == nil {
		return 0, errors.New("gormlock: the *gorm.DB is nil, or was not opened")
	}
	d, ok := dialects[db.Name()]
	if !ok {
		return 0, fmt.Errorf("%w: gormlock supports PostgreSQL, MySQL, MariaDB and SQLite, not %s", locker.ErrUnsupported, db.Name())
	}
	return d, nil
}

// withSession returns a function for sqllock that calls fn with a *gorm.DB on sqllock's
// transaction. The conditions and settings of db also hold in the transaction, as in
// db.Transaction.
func withSession(db *gorm.DB, fn func(context.Context, *gorm.DB) error) func(context.Context, *sqllock.Tx) error {
	return func(ctx context.Context, tx *sqllock.Tx) error {
		session := db.Session(&gorm.Session{Context: ctx})
		session.Statement.ConnPool = &pool{tx, db}
		return fn(ctx, session)
	}
}

// pool makes GORM treat a transaction of sqllock as an open transaction. So db.Transaction inside
// this transaction is a savepoint, and a session with PrepareStmt stays inside the transaction.
type pool struct {
	*sqllock.Tx
	db *gorm.DB
}

var (
	_ gorm.Tx             = (*pool)(nil)
	_ gorm.GetDBConnector = (*pool)(nil)
)

var errNotYours = errors.New("gormlock: Do commits and rolls back; to roll back, return an error")

func (*pool) Commit() error   { return errNotYours }
func (*pool) Rollback() error { return errNotYours }

// GetDBConn returns the pool behind the transaction, as GORM does for its own transactions.
func (p *pool) GetDBConn() (*sql.DB, error) { return p.db.DB() }
