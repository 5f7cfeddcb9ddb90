package pgxlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// transaction is a transaction as sqllock uses it. BEGIN is sent in the same round trip as the
// first statement.
type transaction struct {
	db      DB
	options pgx.TxOptions
	conn    *pgx.Conn // nil if db is not a type of pgx; then BEGIN is sent alone
	release func()    // returns conn to its pool
	tx      pgx.Tx    // nil: no statement was sent
	gate    gate
}

// database returns a Database with which sqllock begins transactions of db.
func database(db DB) sqllock.Database[*transaction] {
	d := sqllock.Database[*transaction]{Dialect: sqllock.Postgres}
	inUse := new(atomic.Bool) // whether a transaction uses db, if db is a connection
	d.Begin = func(ctx context.Context, opts *sql.TxOptions) (*transaction, sqllock.Transaction, error) {
		options, err := optionsOf(opts)
		if err != nil {
			return nil, nil, err
		}
		t := &transaction{db: db, options: options, release: func() {}}
		switch db := db.(type) {
		case *pgxpool.Pool:
			conn, err := db.Acquire(ctx)
			if err != nil {
				return nil, nil, err
			}
			t.conn, t.release = conn.Conn(), conn.Release
			t.db = t.conn
		case *pgxpool.Conn:
			t.conn = db.Conn()
		case *pgx.Conn:
			t.conn = db
		}
		if t.conn != nil && t.db == db {
			if !inUse.CompareAndSwap(false, true) {
				return nil, nil, errUsed
			}
			t.release = sync.OnceFunc(func() { inUse.Store(false) })
		}
		if t.conn != nil && t.conn.PgConn().TxStatus() != 'I' && !t.conn.IsClosed() {
			t.release()
			return nil, nil, errUsed
		}
		return t, t, nil
	}
	return d
}

var errUsed = fmt.Errorf("%w: pgxlock: the connection already has an open transaction; "+
	"end it first, or claim in it with pgxlock.InTx; goroutines need a pool, or a connection each", locker.ErrUnsupported)

var levels = map[sql.IsolationLevel]pgx.TxIsoLevel{
	sql.LevelDefault: "", sql.LevelReadCommitted: pgx.ReadCommitted,
	sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelSerializable: pgx.Serializable,
}

// optionsOf converts opts to the options of pgx.
func optionsOf(opts *sql.TxOptions) (o pgx.TxOptions, err error) {
	if opts == nil {
		return o, nil
	}
	level, ok := levels[opts.Isolation]
	if !ok {
		return o, fmt.Errorf("pgxlock: PostgreSQL has no isolation level %v", opts.Isolation)
	}
	o.IsoLevel = level
	if opts.ReadOnly {
		o.AccessMode = pgx.ReadOnly
	}
	return o, nil
}

// begin sends BEGIN alone.
func (t *transaction) begin(ctx context.Context) (err error) {
	if t.tx == nil {
		t.tx, err = t.db.BeginTx(ctx, t.options)
	}
	return t.addBadConn(err)
}

// Exec runs a statement of sqllock.
func (t *transaction) Exec(ctx context.Context, query string, args ...any) (rows int64, err error) {
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	tag, err := t.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), t.addBadConn(err)
}

// Row runs a query of sqllock. The first query is sent together with BEGIN.
func (t *transaction) Row(ctx context.Context, query string, args []any, dest ...any) error {
	if t.tx == nil && t.conn != nil {
		return t.addBadConn(t.beginWith(ctx, query, args, dest))
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	return t.addBadConn(t.tx.QueryRow(ctx, query, args...).Scan(dest...))
}

func (t *transaction) beginWith(ctx context.Context, query string, args, dest []any) error {
	var batch pgx.Batch
	batch.BeginTx(t.options)
	batch.Queue(query, args...)
	results := t.conn.SendBatch(ctx, &batch)
	_, err := results.Exec()
	if err == nil {
		err = results.QueryRow().Scan(dest...)
	}
	t.tx = results.Tx()
	return errors.Join(err, results.Close())
}

// addBadConn returns err, with driver.ErrBadConn added if err has ended the connection, and so the
// transaction. From driver.ErrBadConn, sqllock concludes that it may retry.
func (t *transaction) addBadConn(err error) error {
	var answer *pgconn.PgError
	if err == nil || errors.As(err, &answer) || t.conn == nil || !t.conn.IsClosed() {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrBadConn, err)
}

// CommitAfter sends a query and COMMIT in one round trip. If the query fails, the server does not
// execute COMMIT.
func (t *transaction) CommitAfter(ctx context.Context, query string, args ...any) error {
	if t.conn == nil {
		if _, err := t.tx.Exec(ctx, query, args...); err != nil {
			return err
		}
		return t.tx.Commit(ctx)
	}
	var batch pgx.Batch
	batch.Queue(query, args...)
	batch.Queue("commit")
	results := t.conn.SendBatch(ctx, &batch)
	_, err := results.Exec()
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = results.Exec()
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	switch {
	case err != nil:
		return err
	case tag.String() == "ROLLBACK":
		return pgx.ErrTxCommitRollback
	}
	t.release()
	return nil
}

// Commit commits.
func (t *transaction) Commit(ctx context.Context) error {
	if err := t.tx.Commit(ctx); err != nil {
		return err
	}
	t.release()
	return nil
}

// Rollback rolls back, and returns the connection to its pool.
func (t *transaction) Rollback(ctx context.Context) error {
	release := t.release
	t.release = func() {}
	defer release()
	if t.tx == nil {
		return nil
	}
	err := t.tx.Rollback(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return err
}
