package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// A Beginner begins transactions of database/sql: *sql.DB, *sql.Conn, and what embeds them, such as *sqlx.DB.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// A Transaction is an open transaction of any library: all that this package asks of it. See [DoWith].
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

// A Database begins transactions of any library.
type Database[T Transaction] struct {
	// Dialect is what the database speaks.
	Dialect Dialect
	// Begin begins a transaction. It is called once the lock is held. ctx lasts until the transaction must end; if the library
	// rolls back by itself then, as database/sql does, rows are free before the function returns. opts may be nil.
	//
	// It must not read, nor ask for a snapshot: on MySQL what is read would be older than the claim. There the settings of the
	// session are the library's, too. Let wait_timeout bound how long it may be idle, and set autocommit to 0 unless the
	// function stops at the first error: what follows a deadlock would be committed at once, though Do returns an error.
	Begin func(ctx context.Context, opts *sql.TxOptions) (T, error)
}

// begin opens a transaction that may be idle for so long, where the server must be told so beforehand; 0: as long as it likes.
type begin func(ctx context.Context, opts *sql.TxOptions, idle time.Duration) (Transaction, error)

// open opens transactions of db.
func open(db Beginner, stmts statements) begin {
	return func(ctx context.Context, opts *sql.TxOptions, idle time.Duration) (Transaction, error) {
		if idle > 0 && stmts["session"] != "" {
			switch db := db.(type) {
			case interface {
				Conn(ctx context.Context) (*sql.Conn, error)
			}: // *sql.DB
				conn, err := db.Conn(ctx)
				if err != nil {
					return nil, err
				}
				return openOn(ctx, conn, func() { _ = conn.Close() }, opts, stmts, idle)
			case connection: // *sql.Conn, which its owner goes on using
				return openOn(ctx, db, func() {}, opts, stmts, idle)
			}
		}
		tx, err := db.BeginTx(ctx, opts)
		if err != nil {
			return nil, err
		}
		return &standard{Tx: tx}, nil
	}
}

// connection is *sql.Conn, and what embeds it.
type connection interface {
	Beginner
	Execer
	Raw(f func(driverConn any) error) error
}

// openOn opens a transaction on a connection that the server hangs up on when it is silent for longer than idle, and on
// which nothing is committed but by COMMIT. These are settings of the session, and must not reach whoever gets the connection
// next. done is called when they are taken back.
func openOn(ctx context.Context, conn connection, done func(), opts *sql.TxOptions, stmts statements, idle time.Duration) (Transaction, error) {
	restore := func(committed bool) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin)
		defer cancel()
		var err error
		if !committed { // what is still open would be committed by the next statement
			_, err = conn.ExecContext(ctx, "ROLLBACK")
		}
		if err == nil {
			_, err = conn.ExecContext(ctx, stmts["restore"])
		}
		if err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // nobody gets it again
		}
		done()
	}
	seconds := int64(max(1, (idle+time.Second-1)/time.Second))
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(stmts["session"], seconds)); err != nil {
		restore(false)
		return nil, err
	}
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		restore(false)
		return nil, err
	}
	return &standard{Tx: tx, after: restore}, nil
}

// standard is a transaction of database/sql, and what must be done to its connection afterwards, if anything.
type standard struct {
	*sql.Tx
	after func(committed bool)
}

var _ Transaction = (*standard)(nil)

// tidyWithin bounds what is done to a connection after its transaction.
const tidyWithin = 5 * time.Second

func (s *standard) Exec(ctx context.Context, query string, args ...any) error {
	_, err := s.ExecContext(ctx, query, args...)
	return err
}

func (s *standard) Row(ctx context.Context, query string, args []any, dest ...any) error {
	return s.QueryRowContext(ctx, query, args...).Scan(dest...)
}

func (s *standard) Commit(context.Context) error {
	err := s.Tx.Commit()
	s.tidy(err == nil)
	return err
}

func (s *standard) Rollback(context.Context) error {
	defer s.tidy(false)
	if err := s.Tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

func (s *standard) tidy(committed bool) {
	if s.after != nil {
		s.after(committed)
		s.after = nil
	}
}
