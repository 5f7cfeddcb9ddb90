package sqllock

import (
	"context"
	"database/sql"
	"errors"

	"github.com/latchkit/latchkit/locker"
)

// A Transaction is an open transaction of any library, as this package uses it. See [Database]. Its
// methods return when ctx ends, whatever the server does.
//
// A Transaction may have one more method:
//
//	CommitAfter(ctx context.Context, query string, args ...any) error
//
// CommitAfter runs a query and COMMIT in one round trip. If the query fails, CommitAfter must not
// commit.
type Transaction interface {
	// Exec runs a statement, and returns how many rows it has changed.
	Exec(ctx context.Context, query string, args ...any) (rows int64, err error)
	// Row runs a query and scans its only row into dest, which are pointers.
	Row(ctx context.Context, query string, args []any, dest ...any) error
	// Commit commits. If ctx ends, Commit only stops waiting for the answer.
	Commit(ctx context.Context) error
	// Rollback rolls back, and does nothing after a Commit.
	Rollback(ctx context.Context) error
}

type commitAfterer interface {
	CommitAfter(ctx context.Context, query string, args ...any) error
}

// A Database begins transactions of any library, for [NewWith]. T is the type of the transaction
// that functions get, such as *sqlx.Tx.
type Database[T any] struct {
	// Dialect is the kind of the database.
	Dialect Dialect
	// Begin begins a transaction. Begin is called while the lock is held. It returns the
	// transaction twice: as the value that the function gets, and as the Transaction that this
	// package uses. opts may be nil.
	//
	// ctx ends when the transaction must end. Some libraries then roll back by themselves, as
	// database/sql does. With such a library, rows are unlocked before the function returns. On
	// MySQL, ctx does not end after Begin has returned, because the session's settings must be
	// restored before the connection is used again.
	//
	// Begin must not read, and must not take a snapshot: on MySQL, the snapshot would be older than
	// the claim. The function must not commit or roll back the transaction: on MySQL, the changed
	// settings of the session would stay on the connection.
	Begin func(ctx context.Context, opts *sql.TxOptions) (T, Transaction, error)
}

// NewWith is [New] for a library that is not database/sql.
func NewWith[T any](l locker.Locker, db Database[T], opts ...Option) (*Handle[T], error) {
	if db.Begin == nil {
		return nil, errors.New("sqllock: the Database's Begin is nil")
	}
	b, err := newBase(l, db.Dialect, nil, opts)
	if err != nil {
		return nil, err
	}
	b.begin = func(ctx context.Context, opts *sql.TxOptions) (any, Transaction, error) {
		if b.dialect == MySQL {
			var begun func() bool
			ctx, begun = untilBegun(ctx)
			defer begun()
		}
		return db.Begin(ctx, opts)
	}
	return &Handle[T]{b, func(fn func(context.Context, T) error) work {
		return func(ctx context.Context, a *attempt) error { return fn(ctx, a.handle.(T)) }
	}}, nil
}

// Adapt returns a Handle like h whose functions get a U, for a library that works on the
// transactions of another. wrap returns the function that calls fn with the U for a T.
func Adapt[T, U any](
	h *Handle[T], wrap func(fn func(ctx context.Context, tx U) error) func(ctx context.Context, tx T) error,
) *Handle[U] {
	return &Handle[U]{h.base, func(fn func(context.Context, U) error) work { return h.bind(wrap(fn)) }}
}
