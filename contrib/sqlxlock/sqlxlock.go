// Package sqlxlock runs sqlx transactions under locks, as package sqllock does for database/sql.
// The transaction that does the work also claims the fence of each lease, so a stale holder commits
// nothing.
//
//	rule := locker.Rule{Key: "account:42"}
//	err := sqlxlock.Do(ctx, l, db, rule, func(ctx context.Context, tx *sqlxlock.Tx) error {
//		_, err := tx.NamedExecContext(ctx, "UPDATE accounts SET paid = :paid", account)
//		return err
//	})
//
// The function gets a *sqlx.Tx that sqlx itself has begun, so named queries are bound for the
// driver. Results and options are the same as in package sqllock. Create the tables with
// sqllock.Migrate, which accepts a *sqlx.DB.
//
// sqllock cannot know when a function uses its *sqlx.Tx. So the idle limit of a transaction does
// not follow the renewals of the lease. Use sqllock.WithIdleLimit if the function sends no
// statement for longer than the lease's TTL.
package sqlxlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// Tx is the transaction that the function gets: a *sqlx.Tx with all its methods, and the claim of
// sqllock. Do commits and rolls back, so do not call Commit or Rollback. The zero value of Tx is
// not usable.
type Tx struct {
	*sqlx.Tx
	*sqllock.Claim
}

// Do acquires the lock that rule describes, begins a transaction, claims the lease's fence in it,
// calls fn, commits, and releases the lock. See [sqllock.Do].
func Do(
	ctx context.Context, l locker.Locker, db *sqlx.DB, rule locker.Rule,
	fn func(ctx context.Context, tx *Tx) error, opts ...sqllock.Option,
) error {
	d, err := database(db)
	if err != nil {
		return err
	}
	return sqllock.DoWith(ctx, l, d, rule, withClaim(fn), opts...)
}

// DoAll is [Do] for several locks. See [sqllock.DoAll].
func DoAll(
	ctx context.Context, l locker.Locker, db *sqlx.DB, rules []locker.Rule,
	fn func(ctx context.Context, tx *Tx) error, opts ...sqllock.Option,
) error {
	d, err := database(db)
	if err != nil {
		return err
	}
	return sqllock.DoAllWith(ctx, l, d, rules, withClaim(fn), opts...)
}

// Within does the work of [Do] under every lease that ctx has already. See [sqllock.Within].
func Within(
	ctx context.Context, db *sqlx.DB, fn func(ctx context.Context, tx *Tx) error, opts ...sqllock.Option,
) error {
	d, err := database(db)
	if err != nil {
		return err
	}
	return sqllock.WithinWith(ctx, d, withClaim(fn), opts...)
}

// WithinAll does the work of [Within] for the leases of ctx with these keys. See
// [sqllock.WithinAll].
func WithinAll(
	ctx context.Context, db *sqlx.DB, keys []string,
	fn func(ctx context.Context, tx *Tx) error, opts ...sqllock.Option,
) error {
	d, err := database(db)
	if err != nil {
		return err
	}
	return sqllock.WithinAllWith(ctx, d, keys, withClaim(fn), opts...)
}

// InTx claims every lease of ctx in a transaction that other code began and will end. See
// [sqllock.InTx].
func InTx(ctx context.Context, tx *sqlx.Tx, opts ...sqllock.Option) (*sqllock.Claim, error) {
	if tx == nil {
		return nil, errors.New("sqlxlock.InTx: the transaction is nil")
	}
	d, ok := dialects[tx.DriverName()]
	if !ok {
		return nil, unknownDriver(tx.DriverName())
	}
	return sqllock.InTx(ctx, d, tx.Tx, opts...)
}

// withClaim returns a function for sqllock that calls fn with the transaction and its claim.
func withClaim(fn func(ctx context.Context, tx *Tx) error) func(ctx context.Context, tx *sqlx.Tx) error {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context, tx *sqlx.Tx) error {
		claim, _ := sqllock.ClaimFromContext(ctx)
		return fn(ctx, &Tx{tx, claim})
	}
}

// dialects has the dialect of each registered driver name. sqlx binds parameters by the same names.
var dialects = map[string]sqllock.Dialect{
	"postgres": sqllock.Postgres, "pgx": sqllock.Postgres, "pgx/v5": sqllock.Postgres,
	"mysql": sqllock.MySQL, "sqlite3": sqllock.SQLite, "sqlite": sqllock.SQLite,
}

// unknownDriver returns the error for a driver name without a dialect.
func unknownDriver(driver string) error {
	return fmt.Errorf("%w: sqlxlock does not know the driver name %q; give sqlx one of postgres, pgx, mysql, sqlite3 and sqlite",
		locker.ErrUnsupported, driver)
}

// database returns a Database with which sqllock begins transactions of db. It keeps the connection
// of each transaction until the settings of MySQL's session are restored.
func database(db *sqlx.DB) (sqllock.Database[*sqlx.Tx], error) {
	if db == nil {
		return sqllock.Database[*sqlx.Tx]{}, errors.New("sqlxlock: the *sqlx.DB is nil")
	}
	d, ok := dialects[db.DriverName()]
	if !ok {
		return sqllock.Database[*sqlx.Tx]{}, unknownDriver(db.DriverName())
	}
	return sqllock.Database[*sqlx.Tx]{
		Dialect: d,
		Pool:    db,
		Begin: func(ctx context.Context, opts *sql.TxOptions) (*sqlx.Tx, sqllock.Transaction, error) {
			conn, err := db.Connx(ctx)
			if err != nil {
				return nil, nil, err
			}
			tx, err := conn.BeginTxx(ctx, opts)
			if err != nil {
				_ = conn.Close()
				return nil, nil, err
			}
			return tx, sqllock.OnConn(conn.Conn, tx.Tx), nil
		},
	}, nil
}
