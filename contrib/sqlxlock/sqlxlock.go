// Package sqlxlock runs sqlx transactions under locks, as package sqllock does for database/sql.
// The transaction that does the work also claims the fence of each lease, so a stale holder commits
// nothing.
//
//	db, err := sqlxlock.New(l, pool)
//	…
//	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *sqlx.Tx) error {
//		_, err := tx.NamedExecContext(ctx, "UPDATE accounts SET paid = :paid", account)
//		return err
//	})
//
// Methods, results and options are those of package sqllock; the method Migrate creates the tables.
// The function gets a *sqlx.Tx that sqlx itself has begun, so named queries are bound for the
// driver. Do commits and rolls back, so do not call Commit or Rollback.
// [sqllock.ClaimFromContext] returns the claim. For a transaction that other code began, call the
// method InTx with the *sql.Tx that is in the *sqlx.Tx.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package sqlxlock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// dialects has the dialect of each registered driver name. sqlx binds parameters by the same names.
var dialects = map[string]sqllock.Dialect{
	"postgres": sqllock.Postgres, "pgx": sqllock.Postgres, "pgx/v5": sqllock.Postgres,
	"mysql": sqllock.MySQL, "sqlite3": sqllock.SQLite, "sqlite": sqllock.SQLite,
}

// New returns a Handle for db, as [sqllock.New] does:
//
//	db, err := sqlxlock.New(l, pool)
//	…
//	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *sqlx.Tx) error { … })
//
// A caller of Do waits until its ctx ends, or for the Rule's Wait. A refused caller gets
// locker.ErrBusy, or locker.ErrUnavailable, and its function has not run. A
// transaction keeps its connection until the settings of MySQL's session are restored.
func New(l locker.Locker, db *sqlx.DB, opts ...sqllock.Option) (*sqllock.Handle[*sqlx.Tx], error) {
	d, ok := dialects[db.DriverName()]
	if !ok {
		return nil, fmt.Errorf("%w: sqlxlock does not know the driver name %q; give sqlx one of postgres, pgx, mysql, sqlite3 and sqlite",
			locker.ErrUnsupported, db.DriverName())
	}
	return sqllock.NewWith(l, sqllock.Database[*sqlx.Tx]{
		Dialect: d,
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
	}, opts...)
}
