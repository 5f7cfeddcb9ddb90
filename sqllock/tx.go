package sqllock

import (
	"context"
	"database/sql"
	"slices"

	"github.com/latchkit/latchkit/locker"
)

// A Claim describes what a transaction of this package has claimed. Its zero value is not usable.
type Claim struct{ attempt *attempt }

// ClaimFromContext returns the claim of the innermost transaction that ctx belongs to. Use it in
// functions whose transaction is not a [*Tx], and in code that a function calls.
func ClaimFromContext(ctx context.Context) (*Claim, bool) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, false
	}
	return &Claim{a}, true
}

// Fence returns the fence of the lease. If the transaction has several leases, Fence returns the
// fence of the first key, and that of an Idempotency-Key only if there is no other. Use it in checks on
// single rows: see [FencedUpdate]. In a transaction of [NewAnswers] without a lease, Fence returns 0.
func (c *Claim) Fence() uint64 {
	_, fence := c.attempt.subject()
	return fence
}

// Leases returns the leases that the transaction runs under, in the order of their keys. The lease of an
// Idempotency-Key comes last.
func (c *Claim) Leases() []*locker.Lease { return slices.Clone(c.attempt.leases) }

// Op names this transaction for [Handle.Resolve]. A program that stores Op before the function
// returns can find out after a crash whether the transaction was committed. Each attempt is a new
// transaction with a new Op.
func (c *Claim) Op() string { return c.attempt.op() }

// Tx is the transaction of Do's function. It has the methods of *sql.Tx that take a context. Do
// itself commits and rolls back, so Tx has no Commit and no Rollback. For work that may be undone
// alone, send SAVEPOINT and ROLLBACK TO SAVEPOINT as statements. Tx implements sqlc's DBTX and similar
// interfaces. Its zero value is not usable. A goroutine that uses a Tx must end before the function
// returns.
//
// Return the errors of statements: some errors end a transaction silently, such as a deadlock on
// MySQL, or an interrupt or a full disk on SQLite. If the function goes on nevertheless, Do returns
// ErrEnded. On MySQL, the later statements are then rolled back. On SQLite, they are already
// committed.
type Tx struct {
	*Claim
	tx *sql.Tx
}

type txKey struct{}

// TxFromContext returns the innermost transaction of database/sql that ctx belongs to. Use it in
// code that the function of [Handle.Do] or of a similar call runs, and in the work of [NewAnswers].
func TxFromContext(ctx context.Context) (*Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*Tx)
	return tx, ok
}

// SQL returns the *sql.Tx itself, for libraries that need one. Leave Commit and Rollback to Do.
func (t *Tx) SQL() *sql.Tx { return t.tx }

// ExecContext runs a statement that returns no rows.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, query, args...)
}

// QueryContext runs a query.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.tx.QueryContext(ctx, query, args...)
}

// QueryRowContext runs a query that returns at most one row. Its error is returned by Scan.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

// PrepareContext prepares a statement for use in this transaction.
func (t *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.tx.PrepareContext(ctx, query)
}

// FencedUpdate runs an UPDATE that writes the fence into the row itself. db is a *Tx, *sql.DB,
// *sql.Conn or *sql.Tx. FencedUpdate returns ErrStaleFence if no row matched:
//
//	UPDATE stock SET left_over = $1, fence = $2 WHERE sku = $3 AND COALESCE(fence, 0) <= $2
//
// FencedUpdate needs neither Do nor its tables: a statement in autocommit is enough, because the
// check is part of the statement. FencedUpdate guards only this row, and only if all writers of the
// row check the fence. A missing row has the same result as a row with a newer fence. Make the
// column NOT NULL DEFAULT 0: a comparison with NULL is never true, so without COALESCE every update
// of the row would be refused.
//
// MySQL counts the changed rows instead of the matched rows, unless the connection's
// clientFoundRows is set. On MySQL, also change a column that always changes, such as version =
// version + 1.
func FencedUpdate(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, query string, args ...any) error {
	r, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	n, err := r.RowsAffected()
	if err != nil {
		return err
	}
	if n == 0 {
		e := &Error{Err: ErrStaleFence}
		if l, ok := locker.FromContext(ctx); ok {
			e.Resource, e.Fence = l.Key(), l.Fence()
		}
		return e
	}
	return nil
}
