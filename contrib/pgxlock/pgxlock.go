// Package pgxlock runs pgx transactions under locks, as package sqllock does for database/sql. The
// transaction that does the work also claims the fence of each lease, so a stale holder commits
// nothing.
//
//	db, err := pgxlock.New(l, pool)
//	…
//	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42")
//		return err
//	})
//
// Methods, results and options are those of package sqllock; the method Migrate creates the tables.
// The function gets a whole pgx.Tx, whose Begin begins a savepoint. Do commits and rolls back, so
// Commit and Rollback of this pgx.Tx only return an error. [sqllock.ClaimFromContext] returns the
// claim.
//
// A transaction costs no more round trips than without a lock. BEGIN is sent together with the
// claim. COMMIT is sent together with the proof that the transaction is still open.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package pgxlock

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// A DB begins transactions: *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// New returns a Handle for db, as [sqllock.New] does:
//
//	db, err := pgxlock.New(l, pool)
//	…
//	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx pgx.Tx) error { … })
//
// A caller of Do waits until its ctx ends, or for the Rule's Wait. A refused caller gets
// locker.ErrBusy, or locker.ErrUnavailable, and its function has not run.
func New(l locker.Locker, db DB, opts ...sqllock.Option) (*sqllock.Handle[pgx.Tx], error) {
	h, err := sqllock.NewWith(l, database(db), opts...)
	if err != nil {
		return nil, err
	}
	return sqllock.Adapt(h, func(fn func(ctx context.Context, tx pgx.Tx) error) func(context.Context, *transaction) error {
		return func(ctx context.Context, t *transaction) error {
			err := fn(ctx, outermost{&guarded{t.tx, &t.gate}})
			t.gate.close()
			if err == nil && t.conn != nil && t.conn.PgConn().IsBusy() {
				return errLeftOpen
			}
			return err
		}
	}), nil
}

var errLeftOpen = errors.New("pgxlock: the function has returned while its Rows, Row or BatchResults use the connection; " +
	"read the Rows to their end or close them, scan the Row, close the BatchResults; nothing was committed")

// InTx claims every lease of ctx in a transaction that other code began and will end. See
// [sqllock.Handle.InTx].
func InTx(ctx context.Context, db *sqllock.Handle[pgx.Tx], tx pgx.Tx) (*sqllock.Claim, error) {
	return db.InTxWith(ctx, &transaction{tx: tx})
}
