// Package pgxlock runs pgx transactions under locks, as package sqllock does for database/sql. The
// transaction that does the work also claims the fence of each lease, so a stale holder commits
// nothing.
//
//	rule := locker.Rule{Key: "account:42"}
//	err := pgxlock.Do(ctx, l, pool, rule, func(ctx context.Context, tx *pgxlock.Tx) error {
//		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42")
//		return err
//	})
//
// Results and options are the same as in package sqllock. Create the tables with sqllock.Migrate:
//
//	sqllock.Migrate(ctx, stdlib.OpenDBFromPool(pool))
//
// A transaction costs no more round trips than without a lock. BEGIN is sent together with the
// claim. COMMIT is sent together with the proof that the transaction is still open.
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

// Tx is the transaction that the function gets: a pgx.Tx with all its methods, and the claim of
// sqllock. Begin begins a savepoint. Do commits and rolls back, so Commit and Rollback of Tx only
// return an error. The zero value of Tx is not usable.
type Tx struct {
	pgx.Tx
	*sqllock.Claim
}

// Do acquires the lock that rule describes, begins a transaction, claims the lease's fence in it,
// calls fn, commits, and releases the lock. See [sqllock.Do].
func Do(
	ctx context.Context, l locker.Locker, db DB, rule locker.Rule,
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
	ctx context.Context, l locker.Locker, db DB, rules []locker.Rule,
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
	ctx context.Context, db DB, fn func(ctx context.Context, tx *Tx) error, opts ...sqllock.Option,
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
	ctx context.Context, db DB, keys []string,
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
func InTx(ctx context.Context, tx pgx.Tx, opts ...sqllock.Option) (*sqllock.Claim, error) {
	if tx == nil {
		return nil, errors.New("pgxlock.InTx: the transaction is nil")
	}
	return sqllock.InTxWith(ctx, sqllock.Postgres, &transaction{tx: tx}, opts...)
}

// withClaim returns a function for sqllock that calls fn with the transaction and its claim.
func withClaim(fn func(ctx context.Context, tx *Tx) error) func(ctx context.Context, t *transaction) error {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context, t *transaction) error {
		claim, _ := sqllock.ClaimFromContext(ctx)
		if err := fn(ctx, &Tx{outermost{&tracked{t.tx, &t.use}}, claim}); err != nil {
			return err
		}
		return t.use.checkIdle()
	}
}
