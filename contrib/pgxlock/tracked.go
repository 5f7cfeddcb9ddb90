package pgxlock

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// usage records when the function uses the connection. The zero value of usage is ready to use.
type usage struct {
	mu     sync.Mutex
	busy   int
	over   bool // the function has returned, so its Tx takes no more statements
	opaque bool // the function has the connection itself, so its use is unknown
}

var errInUse = errors.New("pgxlock: the connection is in use")

var errLeftOpen = errors.New("pgxlock: the function has returned while its Rows, Row or BatchResults still use the connection; " +
	"read the Rows to their end or close them, scan the Row, close the BatchResults; nothing was committed")

// end ends the use of the transaction by the function, and by goroutines that the function has left
// behind. The connection may belong to another transaction soon. end returns an error if the
// function has left the connection in use. Then no COMMIT can be sent on the connection.
func (u *usage) end() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	if u.busy > 0 {
		return errLeftOpen
	}
	return nil
}

// whileIdle calls f if the connection is not in use. Until f returns, new uses of the connection
// wait.
func (u *usage) whileIdle(f func() error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.busy > 0 || u.opaque {
		return errInUse
	}
	return f()
}

// enter begins a use of the connection. The returned function ends the use, and may be called
// twice. After end, enter returns pgx.ErrTxClosed.
func (u *usage) enter() (leave func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return nil, pgx.ErrTxClosed
	}
	u.busy++
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.busy--
	}), nil
}

// during runs a use of the connection that ends with f.
func during[R any](u *usage, f func() (R, error)) (r R, err error) {
	leave, err := u.enter()
	if err != nil {
		return r, err
	}
	defer leave()
	return f()
}

// markOpaque records that the function may use the connection in a way that cannot be recorded.
func (u *usage) markOpaque() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.opaque = true
}

// tracked is a transaction, or a savepoint, that records its uses of the connection.
type tracked struct {
	pgx.Tx
	use *usage
}

// Begin begins a savepoint.
func (t *tracked) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := during(t.use, func() (pgx.Tx, error) { return t.Tx.Begin(ctx) })
	if err != nil {
		return nil, err
	}
	return &tracked{inner, t.use}, nil
}

func (t *tracked) Commit(ctx context.Context) error {
	_, err := during(t.use, func() (none struct{}, err error) { return none, t.Tx.Commit(ctx) })
	return err
}

func (t *tracked) Rollback(ctx context.Context) error {
	_, err := during(t.use, func() (none struct{}, err error) { return none, t.Tx.Rollback(ctx) })
	return err
}

func (t *tracked) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	return during(t.use, func() (int64, error) { return t.Tx.CopyFrom(ctx, table, columns, from) })
}

func (t *tracked) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	return during(t.use, func() (*pgconn.StatementDescription, error) { return t.Tx.Prepare(ctx, name, query) })
}

func (t *tracked) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return during(t.use, func() (pgconn.CommandTag, error) { return t.Tx.Exec(ctx, query, args...) })
}

func (t *tracked) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	leave, err := t.use.enter()
	if err != nil {
		return closed{}, err
	}
	r, err := t.Tx.Query(ctx, query, args...)
	if err != nil {
		leave()
		return r, err
	}
	return &rows{r, leave}, nil
}

func (t *tracked) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	leave, err := t.use.enter() // called before the query, so that no ping is sent at the same time
	if err != nil {
		return closed{}
	}
	return &row{t.Tx.QueryRow(ctx, query, args...), leave}
}

func (t *tracked) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	leave, err := t.use.enter()
	if err != nil {
		return closedBatch{}
	}
	return &results{t.Tx.SendBatch(ctx, b), leave}
}

func (t *tracked) LargeObjects() pgx.LargeObjects {
	t.use.markOpaque()
	return t.Tx.LargeObjects()
}

func (t *tracked) Conn() *pgx.Conn {
	t.use.markOpaque()
	return t.Tx.Conn()
}

// outermost is the transaction itself, and not a savepoint. The function must not end it.
type outermost struct{ *tracked }

var errNotYours = errors.New("pgxlock: Do commits and rolls back; to roll back, return an error")

func (outermost) Commit(context.Context) error   { return errNotYours }
func (outermost) Rollback(context.Context) error { return errNotYours }

// rows is a pgx.Rows. The connection is in use until the rows are closed, or read to their end.
type rows struct {
	pgx.Rows
	leave func()
}

func (r *rows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.leave()
	}
	return more
}

func (r *rows) Close() {
	defer r.leave()
	r.Rows.Close()
}

// row is a pgx.Row. The connection is in use until the row is scanned.
type row struct {
	pgx.Row
	leave func()
}

func (r *row) Scan(dest ...any) error {
	defer r.leave()
	return r.Row.Scan(dest...)
}

// results is a pgx.BatchResults. The connection is in use until the results are closed.
type results struct {
	pgx.BatchResults
	leave func()
}

func (r *results) Close() error {
	defer r.leave()
	return r.BatchResults.Close()
}

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
