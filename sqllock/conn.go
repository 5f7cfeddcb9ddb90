package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"
)

// A Beginner begins transactions of database/sql: *sql.DB, and types that embed it, such as *sqlx.DB.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	Conn(ctx context.Context) (*sql.Conn, error)
}

// openStandard begins a transaction of db. On MySQL, openStandard keeps the connection, because the
// session's settings must be restored after the transaction. On SQLite, it keeps the connection
// because a COMMIT that fails may leave the transaction open.
func openStandard(ctx context.Context, db Beginner, d Dialect, opts *sql.TxOptions) (s *standard, err error) {
	s = new(standard)
	if d == Postgres {
		s.Tx, err = db.BeginTx(ctx, opts)
		return s, err
	}
	if s.conn, err = db.Conn(ctx); err != nil {
		return nil, err
	}
	if s.Tx, err = s.conn.BeginTx(ctx, opts); err != nil {
		_ = s.conn.Close()
	}
	return s, err
}

// untilBegun returns a context that ends with ctx until begun is called. On MySQL, the end of the
// context of a transaction would return its connection before the session's settings are restored.
// They are changed only after the transaction has begun.
func untilBegun(ctx context.Context) (own context.Context, begun func() bool) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	return own, context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
}

// standard is a transaction of database/sql.
type standard struct {
	*sql.Tx
	conn    *sql.Conn // the connection of the transaction, until it goes back to its pool; nil: unknown
	restore string    // restores the settings of conn's session; "": unchanged
	tidied  sync.Once // conn was returned to its pool
}

// OnConn returns the [Transaction] for tx, which began on conn. It is for libraries that use
// database/sql: call it in [Database.Begin]. After the transaction, the settings of conn's session
// are restored, and conn is closed.
func OnConn(conn *sql.Conn, tx *sql.Tx) Transaction {
	return &standard{Tx: tx, conn: conn}
}

// tidyWithin is the time-out of the clean-up of a connection after its transaction.
const tidyWithin = 5 * time.Second

func (s *standard) Exec(ctx context.Context, query string, args ...any) (rows int64, err error) {
	r, err := s.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (s *standard) Row(ctx context.Context, query string, args []any, dest ...any) error {
	return s.QueryRowContext(ctx, query, args...).Scan(dest...)
}

// Commit implements Transaction. The methods of *sql.Tx that end it have no context.
func (s *standard) Commit(ctx context.Context) error {
	return bounded(ctx, func() error {
		err := s.Tx.Commit()
		if err == nil {
			s.tidy(s.restore)
		} else {
			s.tidy("ROLLBACK", s.restore) // restore alone would commit an open transaction
		}
		return err
	})
}

func (s *standard) Rollback(ctx context.Context) error {
	return bounded(ctx, func() error {
		err := s.Tx.Rollback()
		if err == nil && s.restore == "" {
			s.tidy()
		} else {
			s.tidy("ROLLBACK", s.restore)
		}
		if errors.Is(err, sql.ErrTxDone) {
			return nil
		}
		return err
	})
}

// bounded returns what end returns, or an error when ctx ends before. Then end goes on by itself.
func bounded(ctx context.Context, end func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- end() }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tidy ends what the transaction has left on its connection by the statements queries, and returns
// the connection to its pool, or makes the pool close the connection. An empty query is left out.
// On SQLite, a ROLLBACK fails if no transaction is open.
func (s *standard) tidy(queries ...string) {
	s.tidied.Do(func() {
		if s.conn == nil {
			return
		}
		defer func() { _ = s.conn.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), tidyWithin)
		defer cancel()
		for _, query := range queries {
			if query == "" {
				continue
			}
			if _, err := s.conn.ExecContext(ctx, query); err != nil && SQLite.number(err)&0xff != sqliteError {
				_ = s.conn.Raw(func(any) error { return driver.ErrBadConn }) // the pool drops the connection
				break
			}
		}
	})
}
