package sqllock

import (
	"context"
	"database/sql"
	"errors"

	"github.com/latchkit/latchkit/locker"
)

// A Transaction is an open transaction of any library, as this package uses it. See [Database].
//
// A Transaction may have two more methods:
//
//	Ping(ctx context.Context) error
//
// keeps the server from ending the transaction for idleness while the lease is renewed. Ping is
// called from another goroutine while the function runs. It must do nothing, and return an error,
// when a statement is under way or when rows are open.
//
//	CommitAfter(ctx context.Context, query string, args ...any) error
//
// runs a query and COMMIT in one round trip, and does not commit when the query fails.
type Transaction interface {
	// Exec runs a statement.
	Exec(ctx context.Context, query string, args ...any) error
	// Row runs a query and scans its only row into dest, which are pointers.
	Row(ctx context.Context, query string, args []any, dest ...any) error
	// Commit commits. ctx only bounds the wait for the answer.
	Commit(ctx context.Context) error
	// Rollback rolls back, and does nothing after a Commit.
	Rollback(ctx context.Context) error
}

type pinger interface {
	Ping(ctx context.Context) error
}

type commitAfterer interface {
	CommitAfter(ctx context.Context, query string, args ...any) error
}

// A Database begins transactions of any library. T is what the function works with, such as
// *gorm.DB.
type Database[T any] struct {
	// Dialect is the kind of the database.
	Dialect Dialect
	// Begin begins a transaction. It is called when the lock is held. It returns the transaction
	// twice: for the function, and for this package. opts may be nil.
	//
	// ctx lasts until the transaction must end. A library that rolls back by itself then, as
	// database/sql does, frees rows before the function returns. On MySQL ctx does not end, because
	// settings of the session are put back before the connection is used by anybody else.
	//
	// Begin must not read, nor ask for a snapshot: on MySQL the snapshot would be older than the
	// claim. The function must not commit or roll back what Begin returned: settings of MySQL's
	// session would stay on the connection.
	Begin func(ctx context.Context, opts *sql.TxOptions) (T, Transaction, error)
	// Pool identifies the database by its *sql.DB, or by a type that embeds *sql.DB, so that
	// transactions inside each other are known to wait for each other, or not. nil: unknown.
	Pool any
}

// DoWith is [Do] for a library that is not database/sql. The lease is in the function's context,
// and [ClaimFromContext] finds the claim there.
func DoWith[T any](
	ctx context.Context, l locker.Locker, db Database[T], rule locker.Rule,
	fn func(ctx context.Context, tx T) error, opts ...Option,
) error {
	return DoAllWith(ctx, l, db, []locker.Rule{rule}, fn, opts...)
}

// DoAllWith is [DoAll] for a library that is not database/sql.
func DoAllWith[T any](
	ctx context.Context, l locker.Locker, db Database[T], rules []locker.Rule,
	fn func(ctx context.Context, tx T) error, opts ...Option,
) error {
	if len(rules) == 0 {
		return errNoRules
	}
	c, err := with(db, termsOf(rules), fn, opts)
	if err != nil {
		return err
	}
	return c.run(ctx, l, rules)
}

// WithinWith is [Within] for a library that is not database/sql.
func WithinWith[T any](
	ctx context.Context, db Database[T], fn func(ctx context.Context, tx T) error, opts ...Option,
) error {
	return within(ctx, nil, func(terms []term) (*call, error) { return with(db, terms, fn, opts) })
}

// WithinAllWith is [WithinAll] for a library that is not database/sql.
func WithinAllWith[T any](
	ctx context.Context, db Database[T], keys []string,
	fn func(ctx context.Context, tx T) error, opts ...Option,
) error {
	if len(keys) == 0 {
		return errNoKeys
	}
	return within(ctx, keys, func(terms []term) (*call, error) { return with(db, terms, fn, opts) })
}

// with makes the call for a database of any library.
func with[T any](
	db Database[T], terms []term, fn func(ctx context.Context, tx T) error, opts []Option,
) (*call, error) {
	if db.Begin == nil || fn == nil {
		return nil, errors.New("sqllock: the Database's Begin or the function is nil")
	}
	c, err := newCall(terms, append([]Option{WithDialect(db.Dialect)}, opts...))
	if err != nil {
		return nil, err
	}
	c.pool = poolOf(db.Pool)
	c.begin = func(ctx context.Context, opts *sql.TxOptions) (any, Transaction, error) {
		if c.dialect == MySQL {
			ctx = context.WithoutCancel(ctx)
		}
		return db.Begin(ctx, opts)
	}
	c.fn = func(ctx context.Context, a *attempt) error { return fn(ctx, a.lent.(T)) }
	return c, nil
}
