// Package gormlock runs GORM transactions under locks, as package sqllock does for database/sql.
// The transaction that does the work also claims the fence of each lease, so a stale holder commits
// nothing.
//
//	db, err := gormlock.New(l, pool)
//	…
//	err = db.Do(ctx, locker.Rule{Key: "sku:book"}, func(ctx context.Context, tx *gorm.DB) error {
//		return tx.Model(&Stock{SKU: "book"}).Update("left_over", gorm.Expr("left_over - 1")).Error
//	})
//
// Methods, results and options are those of package sqllock; the method Migrate creates the tables.
// The function gets a complete *gorm.DB. [sqllock.ClaimFromContext] returns the claim. Do commits
// and rolls back, so Commit and Rollback of this *gorm.DB only return an error. After a Rollback,
// Do commits nothing. Return the errors of statements: see [sqllock.Tx].
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// New returns a Handle for db, as [sqllock.New] does:
//
//	db, err := gormlock.New(l, pool)
//	…
//	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *gorm.DB) error { … })
//
// A caller of Do waits until its ctx ends, or for the Rule's Wait. A refused caller gets
// locker.ErrBusy, or locker.ErrUnavailable, and its function has not run. The conditions
// and settings of db also hold in its transactions, as in db.Transaction.
func New(l locker.Locker, db *gorm.DB, opts ...sqllock.Option) (*sqllock.Handle[*gorm.DB], error) {
	d, err := dialectOf(db)
	if err != nil {
		return nil, err
	}
	if _, ok := db.Statement.ConnPool.(gorm.TxCommitter); ok {
		return nil, fmt.Errorf("%w: gormlock: db is already a transaction; claim in it with gormlock.InTx", locker.ErrUnsupported)
	}
	sqlDB, err := db.DB()
	if err != nil {
		return nil, err
	}
	h, err := sqllock.New(l, sqlDB, append([]sqllock.Option{sqllock.WithDialect(d)}, opts...)...)
	if err != nil {
		return nil, err
	}
	return sqllock.Adapt(h, func(fn func(context.Context, *gorm.DB) error) func(context.Context, *sqllock.Tx) error {
		return func(ctx context.Context, tx *sqllock.Tx) error {
			session := db.Session(&gorm.Session{Context: ctx})
			p := &pool{Tx: tx, db: db}
			session.Statement.ConnPool = p
			if err := fn(ctx, session); err != nil || !p.refused.Load() {
				return err
			}
			return errRollback
		}
	}), nil
}

// InTx claims every lease of ctx in a transaction that db.Begin or db.Transaction has begun. The
// code that began the transaction ends it. See [sqllock.Handle.InTx].
func InTx(ctx context.Context, db *sqllock.Handle[*gorm.DB], tx *gorm.DB) (*sqllock.Claim, error) {
	if _, err := dialectOf(tx); err != nil {
		return nil, err
	}
	begun, ok := transactionOf(tx.Statement.ConnPool)
	if !ok {
		return nil, fmt.Errorf("%w: gormlock.InTx: %T is not an open transaction; begin one with db.Transaction",
			locker.ErrUnsupported, tx.Statement.ConnPool)
	}
	return db.InTx(ctx, begun)
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

var dialects = map[string]sqllock.Dialect{
	"postgres": sqllock.Postgres, "mysql": sqllock.MySQL, "sqlite": sqllock.SQLite,
}

func dialectOf(db *gorm.DB) (sqllock.Dialect, error) {
	if db.Config == nil || db.Dialector == nil {
		return 0, errors.New("gormlock: the *gorm.DB was not opened")
	}
	d, ok := dialects[db.Name()]
	if !ok {
		return 0, fmt.Errorf("%w: gormlock supports PostgreSQL, MySQL, MariaDB and SQLite, not %s", locker.ErrUnsupported, db.Name())
	}
	return d, nil
}

// pool makes GORM treat a transaction of sqllock as an open transaction. So db.Transaction inside
// this transaction is a savepoint, and a session with PrepareStmt stays inside the transaction.
type pool struct {
	*sqllock.Tx
	db      *gorm.DB
	refused atomic.Bool // the function has called Rollback
}

var (
	_ gorm.Tx             = (*pool)(nil)
	_ gorm.GetDBConnector = (*pool)(nil)
)

var (
	errNotYours = errors.New("gormlock: Do commits and rolls back; to roll back, return an error")
	errRollback = errors.New("gormlock: the function has called Rollback and returned nil; " +
		"to roll back, return an error; nothing was committed")
)

func (*pool) Commit() error { return errNotYours }

// Rollback refuses. Programs often ignore the errors of GORM, so Do also returns an error, and does
// not commit.
func (p *pool) Rollback() error {
	p.refused.Store(true)
	return errNotYours
}

// StmtContext returns a statement of the transaction, which a session with PrepareStmt needs.
func (p *pool) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	return p.SQL().StmtContext(ctx, stmt)
}

// GetDBConn returns the pool behind the transaction, as GORM does for its own transactions.
func (p *pool) GetDBConn() (*sql.DB, error) { return p.db.DB() }
