package pgxlock

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// gate lets statements pass until the function has returned.
type gate struct {
	mu   sync.RWMutex // read-locked while a statement passes
	shut bool
}

// close refuses further statements. It waits for one that is passing.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}

// pass runs a statement, unless the gate is closed.
func pass[R any](g *gate, statement func() (R, error)) (r R, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.shut {
		return r, pgx.ErrTxClosed
	}
	return statement()
}

// guarded is a transaction, or a savepoint, that takes no statements after the function has
// returned. The connection may belong to another transaction then, and a goroutine that the function
// has left behind must not write there.
type guarded struct {
	pgx.Tx
	gate *gate
}

// Begin begins a savepoint.
func (t *guarded) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := pass(t.gate, func() (pgx.Tx, error) { return t.Tx.Begin(ctx) })
	if err != nil {
		return nil, err
	}
	return &guarded{inner, t.gate}, nil
}

func (t *guarded) Commit(ctx context.Context) error {
	_, err := pass(t.gate, func() (none struct{}, err error) { return none, t.Tx.Commit(ctx) })
	return err
}

func (t *guarded) Rollback(ctx context.Context) error {
	_, err := pass(t.gate, func() (none struct{}, err error) { return none, t.Tx.Rollback(ctx) })
	return err
}

func (t *guarded) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	return pass(t.gate, func() (int64, error) { return t.Tx.CopyFrom(ctx, table, columns, from) })
}

func (t *guarded) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	return pass(t.gate, func() (*pgconn.StatementDescription, error) { return t.Tx.Prepare(ctx, name, query) })
}

func (t *guarded) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return pass(t.gate, func() (pgconn.CommandTag, error) { return t.Tx.Exec(ctx, query, args...) })
}

func (t *guarded) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	rows, err := pass(t.gate, func() (pgx.Rows, error) { return t.Tx.Query(ctx, query, args...) })
	if rows == nil {
		rows = closed{}
	}
	return rows, err
}

func (t *guarded) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	row, err := pass(t.gate, func() (pgx.Row, error) { return t.Tx.QueryRow(ctx, query, args...), nil })
	if err != nil {
		return closed{}
	}
	return row
}

func (t *guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	results, err := pass(t.gate, func() (pgx.BatchResults, error) { return t.Tx.SendBatch(ctx, b), nil })
	if err != nil {
		return closedBatch{}
	}
	return results
}

// outermost is the transaction itself, and not a savepoint. The function must not end it.
type outermost struct{ *guarded }

var errNotYours = errors.New("pgxlock: Do commits and rolls back; to roll back, return an error")

func (outermost) Commit(context.Context) error   { return errNotYours }
func (outermost) Rollback(context.Context) error { return errNotYours }

// closed is the Rows, or the Row, of a query that was sent after the transaction.
type closed struct{ pgx.Rows }

func (closed) Close()                                       {}
func (closed) Err() error                                   { return pgx.ErrTxClosed }
func (closed) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (closed) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (closed) Next() bool                                   { return false }
func (closed) Scan(...any) error                            { return pgx.ErrTxClosed }
func (closed) Values() ([]any, error)                       { return nil, pgx.ErrTxClosed }
func (closed) RawValues() [][]byte                          { return nil }
func (closed) Conn() *pgx.Conn                              { return nil }

// closedBatch is the BatchResults of a batch that was sent after the transaction.
type closedBatch struct{}

func (closedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, pgx.ErrTxClosed }
func (closedBatch) Query() (pgx.Rows, error)         { return closed{}, pgx.ErrTxClosed }
func (closedBatch) QueryRow() pgx.Row                { return closed{} }
func (closedBatch) Close() error                     { return pgx.ErrTxClosed }
func (closedBatch) Tx() pgx.Tx                       { return nil }
