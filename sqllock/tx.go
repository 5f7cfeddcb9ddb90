package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/latchkit/latchkit/locker"
)

// Tx is the transaction that Do's function works in. It has the methods of *sql.Tx that take a context, but for Commit and
// Rollback, which are Do's; sqlc's DBTX and interfaces like it are satisfied. Its zero value is not usable.
//
// On MySQL and SQLite some errors end a transaction without a word, such as a deadlock on MySQL. A Tx remembers such an error: no
// statement runs after it, and Do returns it, whatever fn does. One that it cannot see, in Rows or of a Stmt, Do finds out about
// before the COMMIT. On MySQL nothing of what followed is kept then; on SQLite it was committed already, so return such errors.
type Tx struct {
	attempt *attempt
	tx      *sql.Tx

	mu    sync.Mutex
	err   error // ended the transaction
	depth int   // of savepoints
}

// Fence is the fence of the lease, of DoAll that of the first key. Row-level checks compare it; see [FencedUpdate].
func (t *Tx) Fence() uint64 { return t.attempt.leases[0].Fence() }

// Leases are the leases that the transaction runs under, in the order of their keys.
func (t *Tx) Leases() []*locker.Lease { return append([]*locker.Lease(nil), t.attempt.leases...) }

// Op names this transaction for [Resolve]. A program that writes it down before fn returns can find out after a crash
// whether the transaction was committed. When fn is called again, it is in another transaction with another Op.
func (t *Tx) Op() string { return t.attempt.op() }

// SQL is the transaction itself, for libraries that want one. Leave Commit and Rollback to Do.
func (t *Tx) SQL() *sql.Tx { return t.tx }

// ExecContext runs a statement that returns no rows.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.spoilt(); err != nil {
		return nil, err
	}
	r, err := t.tx.ExecContext(ctx, query, args...)
	return r, t.watch(err)
}

// QueryContext runs a query.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.spoilt(); err != nil {
		return nil, err
	}
	rows, err := t.tx.QueryContext(ctx, query, args...)
	return rows, t.watch(err)
}

// QueryRowContext runs a query that returns at most one row; its error comes with Scan.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := t.spoilt(); err != nil {
		over, cancel := context.WithCancelCause(ctx)
		cancel(err)
		return t.tx.QueryRowContext(over, query, args...) // the only way to a Row with an error
	}
	row := t.tx.QueryRowContext(ctx, query, args...)
	_ = t.watch(row.Err())
	return row
}

// PrepareContext prepares a statement for use in this transaction.
func (t *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := t.spoilt(); err != nil {
		return nil, err
	}
	s, err := t.tx.PrepareContext(ctx, query)
	return s, t.watch(err)
}

// watch remembers an error that has ended the transaction.
func (t *Tx) watch(err error) error {
	if err != nil && t.attempt.dialect.ended(err) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.err == nil {
			t.err = fmt.Errorf("sqllock: an earlier statement has ended the transaction: %w", err)
		}
	}
	return err
}

func (t *Tx) spoilt() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Nested runs fn inside a savepoint. When fn fails or panics, what it did is undone and the transaction goes on; fn's error
// comes back unchanged, and whoever called Nested decides. May be nested further. One goroutine at a time.
func (t *Tx) Nested(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) (err error) {
	t.mu.Lock()
	t.depth++
	savepoint := fmt.Sprintf("latchkit_%d", t.depth)
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.depth--
	}()
	if _, err := t.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
		return err
	}
	kept := false
	defer func() {
		if kept {
			return
		}
		if undone := t.undo(ctx, savepoint); undone != nil {
			err = errors.Join(err, undone)
		}
	}()
	if err := fn(ctx, t); err != nil {
		return err
	}
	if _, err := t.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint); err != nil {
		return err
	}
	kept = true
	return nil
}

// undo rolls back to a savepoint and forgets it, also when ctx has ended. If that fails, nobody knows what is left.
func (t *Tx) undo(ctx context.Context, savepoint string) error {
	if t.spoilt() != nil {
		return nil // all of it is gone already
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin)
	defer cancel()
	for _, do := range []string{"ROLLBACK TO SAVEPOINT ", "RELEASE SAVEPOINT "} {
		if _, err := t.tx.ExecContext(ctx, do+savepoint); err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.err == nil {
				t.err = fmt.Errorf("sqllock: the savepoint could not be undone, so the transaction is: %w", err)
			}
			return err
		}
	}
	return nil
}

// Execer runs statements: *Tx, *sql.DB, *sql.Conn, *sql.Tx.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// FencedUpdate runs an UPDATE that carries the fence in the row itself, and answers ErrStaleFence if no row matched:
//
//	UPDATE stock SET left_over = $1, fence = $2 WHERE sku = $3 AND fence <= $2
//
// It needs neither Do nor its tables: any statement in autocommit will do, and the check is part of it. It guards that row
// only, and only against others who check as well. A row that does not exist cannot be told from one with a newer fence.
//
// MySQL counts changed rows, not matched ones, unless the connection's clientFoundRows is set: there, also change a column
// that always changes, such as version = version + 1.
func FencedUpdate(ctx context.Context, db Execer, query string, args ...any) error {
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
