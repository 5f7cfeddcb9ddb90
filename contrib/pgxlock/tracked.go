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
	opaque bool // the function has the connection itself, so its use is unknown
}

var errInUse = errors.New("pgxlock: the connection is in use")

var errLeftOpen = errors.New("pgxlock: the function has returned while its Rows, Row or BatchResults still use the connection; " +
	"read the Rows to their end or close them, scan the Row, close the BatchResults; nothing was committed")

// checkIdle returns an error if the function has left the connection in use. Then no COMMIT can be
// sent on the connection.
func (u *usage) checkIdle() error {
	u.mu.Lock()
	defer u.mu.Unlock()
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
// twice.
func (u *usage) enter() (leave func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy++
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.busy--
	})
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
	defer t.use.enter()()
	inner, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &tracked{inner, t.use}, nil
}

func (t *tracked) Commit(ctx context.Context) error {
	defer t.use.enter()()
	return t.Tx.Commit(ctx)
}

func (t *tracked) Rollback(ctx context.Context) error {
	defer t.use.enter()()
	return t.Tx.Rollback(ctx)
}

func (t *tracked) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	defer t.use.enter()()
	return t.Tx.CopyFrom(ctx, table, columns, from)
}

func (t *tracked) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	defer t.use.enter()()
	return t.Tx.Prepare(ctx, name, query)
}

func (t *tracked) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	defer t.use.enter()()
	return t.Tx.Exec(ctx, query, args...)
}

func (t *tracked) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	leave := t.use.enter()
	r, err := t.Tx.Query(ctx, query, args...)
	if err != nil {
		leave()
		return r, err
	}
	return &rows{r, leave}, nil
}

func (t *tracked) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	leave := t.use.enter() // called before the query, so that no ping is sent at the same time
	return &row{t.Tx.QueryRow(ctx, query, args...), leave}
}

func (t *tracked) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	leave := t.use.enter()
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
