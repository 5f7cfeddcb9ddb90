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
	Begin func(ctx context.Context, opts *sql.TxOptions) (T, error)
}

// begin opens a transaction that may be idle for so long, where the server must be told so beforehand; 0: as long as it likes.
type begin func(ctx context.Context, opts *sql.TxOptions, idle time.Duration) (Transaction, error)

// open opens transactions of db.
func open(db Beginner, stmts statements) begin {
	return func(ctx context.Context, opts *sql.TxOptions, idle time.Duration) (Transaction, error) {
		pool, ok := db.(interface {
			Conn(ctx context.Context) (*sql.Conn, error)
		})
		if ok && idle > 0 && stmts["restore"] != "" {
			return openLimited(ctx, pool.Conn, opts, stmts, idle)
		}
		tx, err := db.BeginTx(ctx, opts)
		if err != nil {
			return nil, err
		}
		return &standard{Tx: tx}, nil
	}
}

// openLimited opens a transaction on a connection that the server hangs up on when it is silent for longer than idle. That is
// a setting of the session, and must not reach whoever gets the connection next.
func openLimited(ctx context.Context, get func(context.Context) (*sql.Conn, error), opts *sql.TxOptions, stmts statements, idle time.Duration) (Transaction, error) {
	conn, err := get(ctx)
	if err != nil {
		return nil, err
	}
	seconds := int64(max(1, (idle+time.Second-1)/time.Second))
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(stmts["limit"], seconds)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	restore := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin)
		defer cancel()
		if _, err := conn.ExecContext(ctx, stmts["restore"]); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // nobody gets it again
		}
		_ = conn.Close()
	}
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		restore()
		return nil, err
	}
	return &standard{Tx: tx, after: restore}, nil
}

// standard is a transaction of database/sql, and what must be done to its connection afterwards, if anything.
type standard struct {
	*sql.Tx
	after func()
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
	defer s.tidy()
	return s.Tx.Commit()
}

func (s *standard) Rollback(context.Context) error {
	defer s.tidy()
	if err := s.Tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

func (s *standard) tidy() {
	if s.after != nil {
		s.after()
		s.after = nil
	}
}
