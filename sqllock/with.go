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
// While the lease is renewed, Ping keeps the server from ending the idle transaction. Do calls Ping
// from another goroutine while the function runs. If a statement runs or rows are open, Ping must
// do nothing and return an error.
//
//	CommitAfter(ctx context.Context, query string, args ...any) error
//
// CommitAfter runs a query and COMMIT in one round trip. If the query fails, CommitAfter must not
// commit.
type Transaction interface {
	// Exec runs a statement.
	Exec(ctx context.Context, query string, args ...any) error
	// Row runs a query and scans its only row into dest, which are pointers.
	Row(ctx context.Context, query string, args []any, dest ...any) error
	// Commit commits. If ctx ends, Commit only stops waiting for the answer.
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

// A Database begins transactions of any library. T is the type of the value with which the function
// works, such as *gorm.DB.
type Database[T any] struct {
	// Dialect is the kind of the database.
	Dialect Dialect
	// Begin begins a transaction. Begin is called while the lock is held. It returns the
	// transaction twice: as the value that the function gets, and as the Transaction that this
	// package uses. opts may be nil.
	//
	// ctx ends when the transaction must end. Some libraries then roll back by themselves, as
	// database/sql does. With such a library, rows are unlocked before the function returns. On
	// MySQL, ctx does not end, because the session's settings must be restored before the
	// connection is used again.
	//
	// Begin must not read, and must not take a snapshot: on MySQL, the snapshot would be older than
	// the claim. The function must not commit or roll back the transaction: on MySQL, the changed
	// settings of the session would stay on the connection.
	Begin func(ctx context.Context, opts *sql.TxOptions) (T, Transaction, error)
	// Pool identifies the database: its *sql.DB, or a type that embeds *sql.DB. With Pool, Do
	// recognizes nested transactions that would wait for each other. nil: the database is unknown.
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
	c, err := forDatabase(db, termsOf(rules), fn, opts)
	if err != nil {
		return err
	}
	return c.run(ctx, l, rules)
}

// WithinWith is [Within] for a library that is not database/sql.
func WithinWith[T any](
	ctx context.Context, db Database[T], fn func(ctx context.Context, tx T) error, opts ...Option,
) error {
	return runWithin(ctx, nil, func(terms []term) (*call, error) { return forDatabase(db, terms, fn, opts) })
}

// WithinAllWith is [WithinAll] for a library that is not database/sql.
func WithinAllWith[T any](
	ctx context.Context, db Database[T], keys []string,
	fn func(ctx context.Context, tx T) error, opts ...Option,
) error {
	if len(keys) == 0 {
		return errNoKeys
	}
	return runWithin(ctx, keys, func(terms []term) (*call, error) { return forDatabase(db, terms, fn, opts) })
}

// forDatabase returns the call of fn for db, a database of any library.
func forDatabase[T any](
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
	c.fn = func(ctx context.Context, a *attempt) error { return fn(ctx, a.handle.(T)) }
	return c, nil
}
